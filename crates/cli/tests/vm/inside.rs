//! What a program in a sandbox sees.

use crate::site::{left_by, state};

/// S8, S9, S10, L19, L20
#[test]
fn the_kernel_is_its_own_and_there_is_no_network_device() {
    let Some(state) = state() else { return };
    let script = "uname -r; ls /sys/class/net; cat /proc/net/route | wc -l; id -un; pwd";
    let left = left_by(&mut state.run(&["--", "sh", "-c", script]), None);
    assert_eq!(left.code, Some(0), "{left:?}");
    let lines: Vec<_> = left.text().lines().collect();
    let host = rustix::system::uname().release().to_string_lossy().into_owned();
    assert_ne!(lines[0], host);
    assert_eq!(lines[1..], ["lo", "1", "user", "/home/user"], "{left:?}");
}

/// S8, S9, U21
#[test]
fn nothing_outside_answers() {
    let Some(state) = state() else { return };
    let script = r#"
        for target in 169.254.169.254/80 1.1.1.1/53 10.0.2.2/22 172.17.0.1/80; do
            timeout 3 bash -c "exec 3<>/dev/tcp/$target" 2>/dev/null && echo "reached $target"
        done
        python3 -c '
import socket
for family in (socket.AF_VSOCK,):
    try:
        socket.create_connection; s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2)
        s.connect((2, 1024)); print("reached the host by vsock")
    except OSError: pass
'
        getent ahosts example.com && echo "resolved"
        echo done"#;
    let left = left_by(&mut state.run(&["--", "bash", "-c", script]), None);
    assert_eq!((left.code, left.text()), (Some(0), "done\n"), "{left:?}");
}

/// S29, and that no host path, token or credential is inside: not on the kernel's
/// command line, in no environment, on no disk.
#[test]
fn nothing_of_the_host_is_inside() {
    let Some(state) = state() else { return };
    // Everything the command has in its own hands, in a form that can be found.
    let mut command = state.run(&[
        "--user",
        "root",
        "-i",
        "--",
        "bash",
        "-c",
        r#"read -r words; cat /proc/cmdline; cat /proc/[0-9]*/environ | tr '\0' '\n'; env
           cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -v 'read -r words'
           cat /proc/mounts; hostname
           grep -rlE "$words" /etc /home /root /run /var /tmp /workspace /opt /srv 2>/dev/null"#,
    ]);
    command.env("COLDFRAME_TOKEN", "coldframe_hunter2").env("SECRET", "hunter2");
    let folder = state.path().to_str().expect("text").to_owned();
    let images = state.images().to_str().expect("text").to_owned();
    let left = left_by(&mut command, Some(format!("hunter2|{folder}|{images}\n").as_bytes()));
    // grep found nothing, which is its code 1.
    assert_eq!(left.code, Some(1), "{left:?}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for secret in ["hunter2", folder.as_str(), images.as_str(), host.as_str()] {
        assert!(!left.text().contains(secret), "{secret:?} is inside:\n{}", left.text());
    }
}

/// S28
#[test]
fn a_variable_reaches_the_program_and_only_what_was_named_does() {
    let Some(state) = state() else { return };
    let mut command = state.run(&["--env", "GIVEN=a b=c", "--env", "TAKEN", "--", "env"]);
    command.env("TAKEN", "from here").env("OTHER", "stays");
    let left = left_by(&mut command, None);
    assert_eq!(left.code, Some(0), "{left:?}");
    let lines: Vec<_> = left.text().lines().collect();
    assert!(lines.contains(&"GIVEN=a b=c") && lines.contains(&"TAKEN=from here"), "{left:?}");
    assert!(!left.text().contains("OTHER") && !left.text().contains("COLDFRAME"), "{left:?}");
}
