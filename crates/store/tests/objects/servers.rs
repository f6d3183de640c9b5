//! Two S3 servers.

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use store::objects::{ObjectSettings, Objects};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const BUCKET: &str = "bucket";
const KEY: &str = "AKIDTEST";
const SECRET: &str = "a-secret-of-this-test";

/// A server with an empty bucket.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// Its data, and the credentials of clients.
    folder: TempDir,
    _running: Running,
}

enum Running {
    Task(JoinHandle<()>),
    Process(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Process(process) => {
                process.kill().ok();
                process.wait().ok();
            }
        }
    }
}

/// Those that can be started here.
pub(crate) async fn all() -> Vec<Server> {
    let mut servers = vec![Server::in_process().await];
    servers.extend(Server::another().await);
    servers
}

impl Server {
    /// One that keeps objects as files and checks signatures.
    pub(crate) async fn in_process() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("data").join(BUCKET)).expect("a bucket");
        let files = s3s_fs::FileSystem::new(folder.path().join("data")).expect("a folder");
        let mut builder = s3s::service::S3ServiceBuilder::new(files);
        builder.set_auth(s3s::auth::SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    // Clients that break off are what is tested.
                    http.serve_connection(TokioIo::new(client), service).await.ok();
                });
            }
        });
        Self { name: "s3s", address, folder, _running: Running::Task(serving) }
    }

    /// One that somebody else wrote, in another language.
    async fn another() -> Option<Self> {
        let program = std::env::var("COLDFRAME_TEST_MOTO").unwrap_or("moto_server".to_owned());
        let port = {
            let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            probe.local_addr().expect("an address").port()
        };
        let started = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                println!("not run: {program}: {error}; install it, or set COLDFRAME_TEST_MOTO");
                return None;
            }
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let folder = tempfile::tempdir().expect("a folder");
        let server = Self { name: "moto", address, folder, _running: Running::Process(process) };
        for _ in 0..600 {
            if make_bucket(address).await.is_ok() {
                return Some(server);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{program} does not answer");
    }

    /// A client of it.
    pub(crate) fn objects(&self) -> Objects {
        self.open(self.address, SECRET)
    }

    /// A client with another secret.
    pub(crate) fn with_secret(&self, secret: &str) -> Objects {
        self.open(self.address, secret)
    }

    /// A client that reaches it through a proxy.
    pub(crate) fn through(&self, proxy: SocketAddr) -> Objects {
        self.open(proxy, SECRET)
    }

    fn open(&self, address: SocketAddr, secret: &str) -> Objects {
        let path = self.folder.path().join(format!("credentials-{secret}"));
        let text = format!("aws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("private");
        let settings = ObjectSettings {
            url: format!("s3://{BUCKET}/some/prefix"),
            endpoint: Some(format!("http://{address}")),
            signing_region: None,
            credentials: Some(path),
            patience: Some(Duration::from_secs(2)),
        };
        Objects::open(&settings).expect("settings that fit")
    }
}

async fn make_bucket(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "PUT /{BUCKET} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if answer.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
}
