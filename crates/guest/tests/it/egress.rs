//! The way out, against a gateway that only writes down what it is asked.

use std::time::Duration;

use guest_protocol::{
    control::{Mode, Network, Request, Response},
    egress::{Destination, Front},
};
use serde_json::{Value, json};

use crate::{
    gateway::Gateway,
    guest,
    host::Host,
    modes::{MODES, PROBE, compare},
    processes::{finish, pid, run, shell, start},
};

const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDo=");

async fn set(host: &Host, mode: Mode) -> Response {
    let proxy = ("https_proxy".to_owned(), "http://127.0.0.1:8789".to_owned());
    let environment = if mode >= Mode::Restricted { vec![proxy] } else { Vec::new() };
    host.control(Request::Network(Box::new(Network { mode, environment }))).await
}

/// A blocking connect, whose outcome a reset right after it does not change.
const CONNECT: &str = r#"
import socket
def connect(address):
    c = socket.socket()
    c.connect(address)
    c.settimeout(60)
    return c
"#;

fn script_of(script: &str) -> Value {
    let script = format!("{CONNECT}{script}");
    json!({ "process": { "cmd": "python3", "args": ["-c", script] }, "stdin": true })
}

async fn python(host: &Host, headers: &[(&str, &str)], script: &str) -> String {
    let message = script_of(script);
    let run = finish(&mut start(host, headers, &message).await).await;
    assert_eq!(run.end["exitCode"], json!(0), "{} {}", run.stdout, run.stderr);
    run.stdout
}

/// S9, S10, U3, U24, U29: each mode has its ways out and no others, for programs
/// that use the proxy and for those that do not, and what is not a way fails at
/// once. Up through the modes and down again.
#[tokio::test]
async fn each_mode_has_its_ways_and_no_others() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    let gateway = Gateway::start(host.incoming());
    for mode in MODES.into_iter().chain(MODES.into_iter().rev()) {
        assert_eq!(set(&host, mode).await, Response::Done, "{mode:?}");
        let found: Value = serde_json::from_str(&python(&host, &[ROOT], PROBE).await).unwrap();
        compare(mode, &found);
        let proxy = (mode >= Mode::Restricted).then_some("http://127.0.0.1:8789");
        assert_eq!(found["proxy_variable"], json!(proxy));
        let asked = gateway.asked();
        assert!(asked.iter().all(|opening| opening.uid == Some(0)), "{asked:?}");
        assert_eq!(asked.is_empty(), mode == Mode::Off);
    }
}

/// U33: the gateway hears which account asks, on every front.
#[tokio::test]
async fn the_gateway_hears_whose_a_client_is() {
    let guest = guest!();
    let host = guest.identified(&[1000, 1001, 0]).await;
    let gateway = Gateway::start(host.incoming());
    set(&host, Mode::Open).await;
    for (uid, name) in [(1000, "dXNlcjo="), (1001, "b3RoZXI6"), (0, "cm9vdDo=")] {
        let basic = format!("Basic {name}");
        // The probe's raw sockets are root's; what it finds is told elsewhere.
        python(&host, &[("authorization", &basic)], PROBE).await;
        let asked = gateway.asked();
        for front in [Front::Named, Front::Proxy, Front::Dns] {
            assert!(asked.iter().any(|opening| opening.front == front), "{front:?}: {asked:?}");
        }
        assert!(asked.iter().any(|opening| matches!(opening.front, Front::Udp(_))));
        assert!(asked.iter().all(|opening| opening.uid == Some(uid)), "{uid}: {asked:?}");
    }
}

/// S17: an answer that breaks off does not look complete, and bytes wait for
/// their reader in both directions.
#[tokio::test]
async fn what_breaks_off_outside_breaks_off_inside() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let _gateway = Gateway::start(host.incoming());
    set(&host, Mode::Mediated).await;
    let script = r#"
import socket
c = connect(("93.184.216.34", 9))
heard = b""
try:
    while part := c.recv(100): heard += part
    print("end", heard)
except ConnectionResetError:
    print("reset", heard)
# Nobody reads at the other end: what is written must wait.
c = connect(("93.184.216.34", 7))
c.settimeout(2)
sent = 0
try:
    while sent < 64 << 20: sent += c.send(b"x" * 65536)
    print("all was taken")
except TimeoutError:
    print("waits")
"#;
    assert_eq!(python(&host, &[], script).await, "reset b'half'\nwaits\n");
}

/// S9: without a gateway, and without a link, nothing opens.
#[tokio::test]
async fn without_a_gateway_a_connection_is_reset() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    // Every stream is closed at once, as by a host whose gateway is away.
    drop(host.incoming());
    set(&host, Mode::Restricted).await;
    let script = r#"
import socket
for port in (443, 8788, 8789):
    c = connect(("127.0.0.1" if port > 8000 else "93.184.216.34", port))
    c.settimeout(20)
    try: print(c.recv(100))
    except ConnectionResetError: print("reset")
"#;
    assert_eq!(python(&host, &[], script).await, "reset\nreset\nreset\n");
}

/// S9, K20: a relay that is killed comes back and serves what it served; what
/// was joined goes on without it.
#[tokio::test]
async fn a_relay_that_is_killed_comes_back() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    let gateway = Gateway::start(host.incoming());
    set(&host, Mode::Mediated).await;
    let script = r#"
import socket, sys
c = connect(("93.184.216.34", 80))
c.sendall(b"first ")
print("open", flush=True)
sys.stdin.readline()
c.sendall(b"second")
c.shutdown(socket.SHUT_WR)
print(c.recv(100))
"#;
    let message = script_of(script);
    let mut messages = start(&host, &[], &message).await;
    let number = pid(&mut messages).await;
    messages.next().await.unwrap();
    while gateway.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let kill =
        "for p in /proc/[0-9]*; do grep -q '^Uid:.991' $p/status && kill -9 ${p#/proc/}; done";
    finish(&mut start(&host, &[ROOT], &shell(kill)).await).await;
    let input = json!({ "process": { "pid": number }, "input": { "stdin": "Cg==" } });
    host.call::<Value>("/process.Process/SendInput", &input).await.unwrap();
    let said = finish(&mut messages).await.stdout;
    assert!(said.contains("b'first second to 93.184.216.34 80'"), "{said}");
    // New ones wait for the new relay.
    let found: Value = serde_json::from_str(&python(&host, &[ROOT], PROBE).await).unwrap();
    compare(Mode::Mediated, &found);
}

/// S17: one account cannot take the places of another, and places come back.
#[tokio::test]
async fn one_account_does_not_starve_another() {
    let guest = guest!();
    let host = guest.identified(&[1000, 1001]).await;
    let _gateway = Gateway::start(host.incoming());
    set(&host, Mode::Mediated).await;
    let greedy = r#"
import socket, sys, time
held, reset = [], 0
for _ in range(300):
    c = connect(("93.184.216.34", 19))
    held.append(c)
time.sleep(1)
for c in held:
    c.setblocking(False)
    try: c.recv(1)
    except BlockingIOError: pass
    except ConnectionResetError: reset += 1
print(reset, flush=True)
sys.stdin.readline()
"#;
    let message = script_of(greedy);
    let mut messages = start(&host, &[], &message).await;
    let number = pid(&mut messages).await;
    let said = messages.next().await.unwrap();
    assert_eq!(said["event"]["data"]["stdout"], json!("MjA0Cg=="), "96 of 300 are held");
    let modest = r#"
import socket
c = connect(("93.184.216.34", 80))
c.sendall(b"x"); c.shutdown(socket.SHUT_WR)
print(c.recv(100).decode())
"#;
    let other = [("authorization", "Basic b3RoZXI6")];
    assert_eq!(python(&host, &other, modest).await, "x to 93.184.216.34 80\n");
    let input = json!({ "process": { "pid": number }, "input": { "stdin": "Cg==" } });
    host.call::<Value>("/process.Process/SendInput", &input).await.unwrap();
    finish(&mut messages).await;
    assert_eq!(python(&host, &[], modest).await, "x to 93.184.216.34 80\n");
}

/// S9, U24: a lower mode ends what it may not have, at once.
#[tokio::test]
async fn a_lower_mode_ends_what_was_open() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let gateway = Gateway::start(host.incoming());
    set(&host, Mode::Mediated).await;
    let script = r#"
import socket
c = connect(("93.184.216.34", 7))
print("open", flush=True)
try: print(c.recv(1))
except ConnectionResetError: print("reset")
"#;
    let message = script_of(script);
    let mut messages = start(&host, &[], &message).await;
    pid(&mut messages).await;
    messages.next().await.unwrap();
    while gateway.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(set(&host, Mode::Off).await, Response::Done);
    assert_eq!(finish(&mut messages).await.stdout, "reset\n");
}

/// S9: a mode that cannot be set up is said, and nothing of it is left.
#[tokio::test]
async fn a_mode_that_cannot_be_set_up_leaves_nothing() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    let gateway = Gateway::start(host.incoming());
    // Somebody is where the resolver belongs.
    let script = r#"
import socket, sys
s = socket.create_server(("127.0.0.1", 53))
print("there", flush=True)
sys.stdin.readline()
"#;
    let message = script_of(script);
    let mut messages = start(&host, &[ROOT], &message).await;
    let number = pid(&mut messages).await;
    messages.next().await.unwrap();
    let Response::Failed { message } = set(&host, Mode::Mediated).await else {
        panic!("two resolvers at one address")
    };
    assert!(message.contains("127.0.0.1:53"), "{message}");
    let input = json!({ "process": { "pid": number }, "input": { "stdin": "Cg==" } });
    host.call::<Value>("/process.Process/SendInput", &input).await.unwrap();
    finish(&mut messages).await;
    let found: Value = serde_json::from_str(&python(&host, &[ROOT], PROBE).await).unwrap();
    compare(Mode::Off, &found);
    assert_eq!(gateway.asked(), []);
    assert_eq!(set(&host, Mode::Mediated).await, Response::Done);
}

/// U29: a connection to an address of ours that stands for no name says so.
#[tokio::test]
async fn an_address_of_no_name_is_passed_on_as_one() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let gateway = Gateway::start(host.incoming());
    set(&host, Mode::Restricted).await;
    run(&host, "exec 3<>/dev/tcp/198.18.7.7/80").await;
    let script = "import socket; socket.create_connection(('198.18.7.7', 80), 9)";
    python(&host, &[], script).await;
    let front = Front::Captured(Destination::Address("198.18.7.7:80".parse().unwrap()));
    assert!(gateway.asked().iter().all(|opening| opening.front == front));
}
