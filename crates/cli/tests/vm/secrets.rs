//! Where the values of variables, and what programs say, do not go.

use std::fs;

use crate::{
    service::Service,
    site::{left_by, walk},
};

/// S28, S29, U16
#[test]
fn values_are_in_no_file_and_no_log() {
    let Some(mut service) = Service::start() else { return };
    let words = ["of-the-sandbox-4711", "of-the-process-4712", "said-inside-4713", "typed-4714"];
    let sandbox = service.create(&["--env", "SECRET=of-the-sandbox-4711"]);
    let arguments = [
        "sandbox",
        "exec",
        "-i",
        "--env",
        "OTHER=of-the-process-4712",
        &sandbox,
        "--",
        "bash",
        "-c",
        "echo $SECRET $OTHER said-inside-4713; cat",
    ];
    let left = left_by(&mut service.client(&arguments), Some(b"typed-4714"));
    for word in words {
        assert!(left.text().contains(word), "{word}: {left:?}");
    }
    assert_eq!(service.end("-TERM"), Some(0));
    let mut files = vec![service.log()];
    walk(service.state.path(), &mut |path| files.push(path.to_owned()));
    let mut n_read = 0;
    for file in files.iter().filter(|file| file.is_file()) {
        let content = fs::read(file).expect("read");
        n_read += 1;
        for word in words {
            let found = content.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!found, "{word} is in {}", file.display());
        }
    }
    assert!(n_read > 3, "the database and the log were looked at");
    service.again();
}

/// The server's own tokens are on disk for their owner only, and in no log.
#[test]
fn tokens_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(service) = Service::start() else { return };
    for name in ["token", "admin-token"] {
        let path = service.state.path().join(name);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let token = fs::read_to_string(&path).expect("read");
        let log = fs::read_to_string(service.log()).expect("read");
        assert!(!log.contains(token.trim()));
    }
    let text = service.ok(&["token", "create", "--scopes", "sandboxes:read", "--name", "reader"]);
    let mut command = service.client(&["sandbox", "list"]);
    assert_eq!(left_by(command.env("COLDFRAME_TOKEN", &text), None).code, Some(0));
    let mut command = service.client(&["sandbox", "create"]);
    let left = left_by(command.env("COLDFRAME_TOKEN", &text), None);
    assert_eq!(left.code, Some(1), "a reader creates nothing: {left:?}");
    let list = service.ok(&["token", "list"]);
    let id = list.lines().find(|line| line.contains("reader")).expect("listed");
    service.ok(&["token", "revoke", id.split('\t').next().expect("an id")]);
    let mut command = service.client(&["sandbox", "list"]);
    assert_eq!(left_by(command.env("COLDFRAME_TOKEN", &text), None).code, Some(1));
}
