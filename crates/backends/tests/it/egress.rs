//! The way out of a real machine, against a gateway that only writes down what it
//! is asked.

use std::time::{Duration, UNIX_EPOCH};

use backends::qemu::Lifetime;
use domain::id::SandboxId;
use guest_protocol::{
    client::{Body, BoxError, GuestClient, Transport},
    control::{self, Identity, Mode, Network, Request, Response},
    egress::Front,
    hello::{Hello, VERSION},
    link::{self, Pipe},
    mux::{self, Limits, Opener, Role},
    preface::{self, Preface},
    process::{Event, Output, ProcessConfig, StartRequest},
};
use sandbox::backend::Backend as _;
use serde_json::Value;
use testkit::fixtures::sandbox_id;
use tokio::time::timeout;

use crate::{
    gateway::Gateway,
    modes::{MODES, PROBE, compare},
    rig::{BOUND, Rig},
};

/// The host's end of a link, as far as the other one may be tested with it.
struct Host {
    opener: Opener,
    epoch: u32,
}

impl Host {
    async fn ask(&self, request: Request) -> anyhow::Result<()> {
        let mut stream = self.opener.open().await?;
        preface::write(&mut stream, Preface::Control).await?;
        control::write(&mut stream, &request).await?;
        let answer: Response = timeout(BOUND, control::read(&mut stream)).await??;
        anyhow::ensure!(answer == Response::Done, "{answer:?}");
        Ok(())
    }

    async fn identify(&self) -> anyhow::Result<()> {
        let unix_nanos = u64::try_from(UNIX_EPOCH.elapsed()?.as_nanos())?;
        let identity = Identity {
            sandbox: "sbx_test".into(),
            hostname: "sandbox".into(),
            machine_id: [1; 16],
            unix_nanos,
            entropy: [self.epoch.to_le_bytes()[0]; 32],
            environment: Vec::new(),
            accounts: vec![1000, 0],
        };
        self.ask(Request::Identify(Box::new(identity))).await
    }

    async fn network(&self, mode: Mode) -> anyhow::Result<()> {
        let proxy = |name: &str| (name.to_owned(), "http://127.0.0.1:8789".to_owned());
        let captures = mode >= Mode::Restricted;
        let environment =
            if captures { vec![proxy("http_proxy"), proxy("https_proxy")] } else { Vec::new() };
        self.ask(Request::Network(Box::new(Network { mode, environment }))).await
    }

    async fn run(&self, user: &str, words: &[&str]) -> anyhow::Result<String> {
        let guest = GuestClient::new(Guest(self.opener.clone()));
        let process = ProcessConfig {
            cmd: words[0].into(),
            args: words[1..].iter().map(|word| (*word).to_owned()).collect(),
            ..Default::default()
        };
        let start = StartRequest { process, stdin: Some(false), ..Default::default() };
        let mut stream = guest.start(&start, user, None).await?;
        let mut printed = Vec::new();
        loop {
            match timeout(BOUND, stream.next()).await?? {
                Event::Data(Output::Stdout(bytes) | Output::Stderr(bytes)) => {
                    printed.extend_from_slice(&bytes.0);
                }
                Event::End(_) => return Ok(String::from_utf8_lossy(&printed).into_owned()),
                _ => {}
            }
        }
    }
}

/// The guest API over this session.
struct Guest(Opener);

#[async_trait::async_trait]
impl Transport for Guest {
    async fn send(&self, request: http::Request<Body>) -> Result<http::Response<Body>, BoxError> {
        let mut stream = self.0.open().await?;
        preface::write(&mut stream, Preface::GuestApi).await?;
        sandbox::guest::send(stream, request).await
    }
}

/// Greets a machine; gives the host's end, and serves what the machine opens.
async fn connect(rig: &Rig, id: &SandboxId, epoch: u32) -> (Host, Gateway) {
    let mut pipe = link::Transport::new(rig.backend.connect(id).await.unwrap());
    let hello = Hello { version: VERSION, epoch };
    timeout(BOUND, pipe.greet(&hello, Pipe::Used)).await.unwrap().unwrap();
    let (session, driving) = mux::session(pipe, Role::Host, Limits::default());
    tokio::spawn(driving);
    (Host { opener: session.opener, epoch }, Gateway::start(session.incoming))
}

/// S8, S9, S10, U3, U24, U29: in a real machine each mode has its ways out and no
/// others: for programs that use the proxy, for programs that ignore it, for raw
/// sockets and a ping, over IPv4 and IPv6. There is no device but loopback.
#[tokio::test(flavor = "multi_thread")]
async fn each_mode_has_its_ways_and_no_others() {
    let Some(rig) = Rig::open("egress", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let (host, gateway) = connect(&rig, &id, 1).await;
    host.identify().await.unwrap();
    for mode in MODES.into_iter().chain([Mode::Mediated, Mode::Off]) {
        host.network(mode).await.unwrap();
        gateway.asked();
        let found = host.run("root", &["python3", "-c", PROBE]).await.unwrap();
        let found: Value = serde_json::from_str(&found).unwrap_or_else(|_| panic!("{found}"));
        println!("{mode:?}: {found}");
        compare(mode, &found);
        assert_eq!(found["devices"], serde_json::json!(["lo"]));
        let captures = mode >= Mode::Restricted;
        let resolver: &[&str] = if captures { &["nameserver 127.0.0.1"] } else { &[] };
        assert_eq!(found["resolv"], serde_json::json!(resolver));
        let asked = gateway.asked();
        assert!(asked.iter().all(|opening| opening.uid == Some(0)), "{asked:?}");
        assert_eq!(asked.is_empty(), mode == Mode::Off);
        for (command, expected) in tools(mode) {
            let printed = host.run("user", &["sh", "-c", command]).await.unwrap();
            assert!(printed.contains(expected), "{mode:?}: {command}: {printed}");
        }
    }
    rig.backend.destroy(&id).await.unwrap();
}

/// What everyday tools of an ordinary account say.
fn tools(mode: Mode) -> Vec<(&'static str, &'static str)> {
    let ping = "ping -c1 -W5 8.8.8.8; ping -6 -c1 -W5 2001:db8::1";
    // Where it gets past its first look, by UDP, it keeps the kernel's refusal to
    // itself.
    let said = if mode == Mode::Open { "100% packet loss" } else { "unreachable" };
    let mut tools = vec![(ping, said)];
    if mode < Mode::Restricted {
        tools.push(("curl -sS --noproxy '*' http://93.184.216.34/", "Failed to connect"));
        tools.push(("getent ahostsv4 good.test || echo no name", "no name"));
        return tools;
    }
    tools.extend([
        ("curl -sS --http0.9 http://a.test/x", "GET http://a.test/x HTTP/1.1 by 1000"),
        ("getent ahostsv4 no.test || echo no name", "no name"),
    ]);
    if mode != Mode::Open {
        tools.push(("getent ahostsv4 good.test", "198.18.0."));
        tools.push(("getent ahostsv6 good.test", "fd63:6f6c:6466::"));
        // Nothing of the proxy: the name, an address of ours, the capture.
        let script = "python3 -c 'import socket; c = socket.create_connection((\"good.test\", 80)); \
                      c.sendall(b\"x\"); c.shutdown(1); print(c.recv(99))'";
        tools.push((script, "x to good.test 80"));
    }
    tools
}

/// S9, K20: when the host is away nothing opens and nothing hangs; the next host
/// finds the network as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_away_leaves_no_way_out() {
    let Some(rig) = Rig::open("egress-away", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let mut pipe = link::Transport::new(rig.backend.connect(&id).await.unwrap());
    let hello = Hello { version: VERSION, epoch: 1 };
    timeout(BOUND, pipe.greet(&hello, Pipe::Fresh)).await.unwrap().unwrap();
    let (session, driving) = mux::session(pipe, Role::Host, Limits::default());
    let driving = tokio::spawn(driving);
    let host = Host { opener: session.opener, epoch: 1 };
    host.identify().await.unwrap();
    host.network(Mode::Restricted).await.unwrap();
    // It tries for as long as nobody is there to see it.
    let script = "import socket, time
for n in range(400):
    try:
        c = socket.create_connection(('93.184.216.34', 80), 20)
        c.sendall(b'x'); c.shutdown(1)
        said = c.recv(99)
    except (ConnectionResetError, BrokenPipeError): said = b'reset'
    except TimeoutError: said = b'hangs'
    print(n, said, file=open('/tmp/said', 'a'), flush=True)
    time.sleep(0.1)";
    let begin = format!("python3 -c \"{script}\" >/dev/null 2>&1 & sleep 1; cat /tmp/said");
    host.run("user", &["sh", "-c", &begin]).await.unwrap();
    driving.abort();
    drop(session.incoming);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (host, gateway) = connect(&rig, &id, 2).await;
    let wait =
        "for n in $(seq 50); do grep -q 'x to' /tmp/said && break; sleep 1; done; cat /tmp/said";
    let said = host.run("user", &["sh", "-c", wait]).await.unwrap();
    assert!(said.contains("reset") && !said.contains("hangs"), "{said}");
    assert!(said.contains("x to 93.184.216.34 80"), "{said}");
    assert!(gateway.asked().iter().all(|opening| matches!(opening.front, Front::Captured(_))));
    rig.backend.destroy(&id).await.unwrap();
}
