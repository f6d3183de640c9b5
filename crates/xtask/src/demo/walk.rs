//! The walk: what a first user would do with a sandbox, shown as typed.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::{progress::Progress, service::Place};

/// How long the sandbox lives.
pub(super) const MINUTES: u64 = 60;

/// Counts words of its input and leaves the result in a file.
const PROGRAM: &str = r#"import collections, json, platform, sys
words = collections.Counter(sys.stdin.read().split())
with open("/workspace/words.json", "w") as file:
    json.dump(words, file)
print(f"{sum(words.values())} words counted on Linux {platform.release()}")
"#;

const INPUT: &str = "the frame keeps the young plants from the garden\n";

/// Tries what code that wants out would try first: the addresses of the host's
/// network, of cloud metadata and of the world, and a name.
const WAY_OUT: &str = r#"import os, socket, sys
print("devices:", " ".join(sorted(os.listdir("/sys/class/net"))))
answered = 0
for host, port in [("10.0.0.1", 80), ("169.254.169.254", 80), ("1.1.1.1", 443), ("2606:4700::1111", 443), ("example.com", 80)]:
    try:
        socket.create_connection((host, port), 3).close()
        print(f"{host}:{port} answers")
        answered += 1
    except OSError as error:
        print(f"{host}:{port} {error.strerror or error}")
print("a way out was found" if answered else "no way out, as it should be")
sys.exit(answered)
"#;

/// The part of `coldframe sandbox create --json` that is needed here.
#[derive(Debug, Deserialize)]
struct Created {
    id: String,
}

/// Creates the sandbox and returns its id.
pub(super) fn create(place: &Place) -> anyhow::Result<String> {
    let mut create = place.command()?;
    create.args(["sandbox", "create", "--template", "base", "--json"]);
    let created = show(create.args(["--timeout", &format!("{MINUTES}m")]))?;
    let created: Created = serde_json::from_str(&created).context("an unexpected answer")?;
    Ok(created.id)
}

/// Takes the steps of the demo that follow.
pub(super) fn through(progress: &mut Progress, place: &Place, sandbox: &str) -> anyhow::Result<()> {
    let exec = |program: &[&str], input: &str| -> anyhow::Result<String> {
        let mut exec = place.command()?;
        exec.args(["sandbox", "exec", "-i", sandbox, "--"]).args(program);
        show_with(&mut exec, input)
    };
    let folder = place.state.join("walk");
    fs::create_dir_all(&folder)?;
    progress.step(|| {
        let program = folder.join("count.py");
        fs::write(&program, PROGRAM)?;
        copy(place, &program.display().to_string(), &format!("{sandbox}:/workspace/count.py"))?;
        exec(&["python3", "/workspace/count.py"], INPUT).map(drop)
    })?;
    progress.step(|| {
        let result = folder.join("words.json");
        copy(place, &format!("{sandbox}:/workspace/words.json"), &result.display().to_string())?;
        fetched(&result)
    })?;
    progress.step(|| {
        let said = exec(&["python3", "-"], WAY_OUT)?;
        ensure!(said.starts_with("devices: lo\n"), "the sandbox has a network device");
        Ok(())
    })
}

fn copy(place: &Place, from: &str, to: &str) -> anyhow::Result<()> {
    show(place.command()?.args(["sandbox", "cp", from, to])).map(drop)
}

/// Checks the file that came back, so that the demo cannot succeed by accident.
fn fetched(path: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(path)?;
    println!("    {text}");
    let words: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(words["the"] == 3, "the file is not what the program wrote");
    Ok(())
}

/// Runs a command, shows it with its output, and returns its standard output.
pub(super) fn show(command: &mut Command) -> anyhow::Result<String> {
    show_with(command, "")
}

fn show_with(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    // Without the configuration, which is the demo's own.
    let words = words.iter().skip_while(|word| *word != "sandbox").map(AsRef::as_ref);
    let line = words.collect::<Vec<&str>>().join(" ");
    println!("    $ coldframe {line}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("coldframe could not be started")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading its input says so by its output.
        stdin.write_all(input.as_bytes()).ok();
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in said.lines().chain(complaint.lines()) {
        println!("      {line}");
    }
    if !output.status.success() {
        bail!("`coldframe {line}` ended with {}", output.status);
    }
    Ok(said)
}
