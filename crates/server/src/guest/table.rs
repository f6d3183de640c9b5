//! Everything a client may ask of a guest, by exact method and path.
//!
//! A path is compared as it was sent, without decoding: another spelling of an
//! allowed path is not an allowed path.

use control::guest::GuestCall;
use domain::scope::Scope;
use http::Method;

/// One allowed kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table below says what each stands for")]
pub(crate) enum Route {
    Health,
    Metrics,
    FileRead,
    FileWrite,
    ProcessStart,
    ProcessConnect,
    ProcessList,
    ProcessInput,
    ProcessInputStream,
    ProcessSignal,
    ProcessUpdate,
    Stat,
    DirectoryList,
    DirectoryMake,
    Move,
    Remove,
    Watch,
    Watcher,
}

/// The whole surface. `POST /init` and everything else of the guest is absent.
pub(crate) const TABLE: [(Method, &str, Route); 21] = [
    (Method::GET, "/health", Route::Health),
    (Method::GET, "/metrics", Route::Metrics),
    (Method::GET, "/files", Route::FileRead),
    (Method::POST, "/files", Route::FileWrite),
    (Method::POST, "/process.Process/Start", Route::ProcessStart),
    (Method::POST, "/process.Process/Connect", Route::ProcessConnect),
    (Method::POST, "/process.Process/List", Route::ProcessList),
    (Method::POST, "/process.Process/SendInput", Route::ProcessInput),
    (Method::POST, "/process.Process/StreamInput", Route::ProcessInputStream),
    (Method::POST, "/process.Process/SendSignal", Route::ProcessSignal),
    (Method::POST, "/process.Process/CloseStdin", Route::ProcessInput),
    (Method::POST, "/process.Process/Update", Route::ProcessUpdate),
    (Method::POST, "/filesystem.Filesystem/Stat", Route::Stat),
    (Method::POST, "/filesystem.Filesystem/ListDir", Route::DirectoryList),
    (Method::POST, "/filesystem.Filesystem/MakeDir", Route::DirectoryMake),
    (Method::POST, "/filesystem.Filesystem/Move", Route::Move),
    (Method::POST, "/filesystem.Filesystem/Remove", Route::Remove),
    (Method::POST, "/filesystem.Filesystem/WatchDir", Route::Watch),
    (Method::POST, "/filesystem.Filesystem/CreateWatcher", Route::Watcher),
    (Method::POST, "/filesystem.Filesystem/GetWatcherEvents", Route::Watcher),
    (Method::POST, "/filesystem.Filesystem/RemoveWatcher", Route::Watcher),
];

/// How the body of a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// There is none.
    None,
    /// One JSON message.
    Unary,
    /// Enveloped JSON messages.
    Stream,
    /// Bytes of a file.
    Content,
}

/// Finds what a request is, if it is allowed.
pub(crate) fn find(method: &Method, path: &str) -> Option<Route> {
    let entry = TABLE.iter().find(|(known, at, _)| known == method && *at == path);
    entry.map(|(_, _, route)| *route)
}

impl Route {
    /// How its body is made.
    pub(crate) fn form(self) -> Form {
        match self {
            Self::Health | Self::Metrics | Self::FileRead => Form::None,
            Self::FileWrite => Form::Content,
            Self::ProcessStart | Self::ProcessConnect | Self::ProcessInputStream | Self::Watch => {
                Form::Stream
            }
            Self::ProcessList
            | Self::ProcessInput
            | Self::ProcessSignal
            | Self::ProcessUpdate
            | Self::Stat
            | Self::DirectoryList
            | Self::DirectoryMake
            | Self::Move
            | Self::Remove
            | Self::Watcher => Form::Unary,
        }
    }

    /// The scope it needs, which is the use case's to say.
    pub(crate) fn scope(self) -> Scope {
        let nothing = String::new;
        let call = match self {
            Self::ProcessStart => GuestCall::ProcessStart { program: nothing(), arguments: 0 },
            Self::FileRead => GuestCall::FileRead { path: nothing() },
            Self::FileWrite => GuestCall::FileWrite { path: nothing(), size: None },
            Self::DirectoryMake => GuestCall::DirectoryMake { path: nothing() },
            Self::Move => GuestCall::FileMove { from: nothing(), to: nothing() },
            Self::Remove => GuestCall::FileRemove { path: nothing() },
            Self::Health => GuestCall::Health,
            Self::Metrics => GuestCall::Metrics,
            Self::ProcessConnect => GuestCall::ProcessConnect,
            Self::ProcessList => GuestCall::ProcessList,
            Self::ProcessInput | Self::ProcessInputStream => GuestCall::ProcessInput,
            Self::ProcessSignal => GuestCall::ProcessSignal,
            Self::ProcessUpdate => GuestCall::ProcessUpdate,
            Self::Stat => GuestCall::FileStat,
            Self::DirectoryList => GuestCall::DirectoryList,
            Self::Watch | Self::Watcher => GuestCall::Watch,
        };
        call.scope()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, expected: Option<Route>) {
        assert_eq!(find(&method, path), expected, "{method} {path}");
    }

    /// F-01
    #[test]
    fn what_the_table_does_not_name_is_not_found() {
        check(Method::GET, "/files", Some(Route::FileRead));
        check(Method::POST, "/process.Process/Start", Some(Route::ProcessStart));
        for path in [
            "",
            "/",
            "/init",
            "/envs",
            "/files/",
            "//files",
            "/./files",
            "/health/../init",
            "/%66iles",
            "/files%2f..%2finit",
            "/files/compose",
            "/process.Process/start",
            "/process.Process/Start/",
            "/process.Process/",
            "/filesystem.Filesystem/Unknown",
        ] {
            check(Method::POST, path, None);
            check(Method::GET, path, None);
        }
        for method in [Method::PUT, Method::DELETE, Method::OPTIONS, Method::CONNECT] {
            check(method, "/files", None);
        }
        check(Method::GET, "/process.Process/List", None);
        check(Method::POST, "/health", None);
    }
}
