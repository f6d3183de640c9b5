//! The measurements in which all ways take turns.

use std::time::Instant;

use anyhow::Context;

use super::{
    docker::Docker,
    peers::Peers,
    record::Way,
    samples::Samples,
    sandboxes::{self, Sandboxes},
};

/// How often the guest starts the program by itself, to learn what that costs.
const INNER: usize = 20;

/// Starts a sandbox, a container and so on, `rounds` times each.
pub(super) fn starts(
    rounds: usize,
    sandboxes: &Sandboxes<'_>,
    docker: &Docker,
    peers: &Peers,
) -> anyhow::Result<Vec<Way>> {
    let mut exchange = sandboxes.open()?;
    let mut rest = Way::new("sandbox, over a kept connection");
    let mut created = Samples::default();
    let mut ended = Samples::default();
    let mut run = Way::new("coldframe run");
    let mut container = Way::new("docker run --rm");
    let mut runsc = Way::new("runsc do");
    let mut bwrap = Way::new("bwrap");
    // The first of each warms what is cached later: a template, layers, pages.
    for round in 0..=rounds {
        let life = sandboxes.time_life(&mut exchange).context("a sandbox")?;
        let timings = [
            (&mut rest, Some(life.timing)),
            (&mut container, Some(docker.time_run()?)),
            (&mut run, Some(sandboxes.time_run()?)),
            (&mut runsc, peers.runsc.is_some().then(|| peers.time_runsc()).transpose()?),
            (&mut bwrap, Some(peers.time_bwrap()?)),
        ];
        if round == 0 {
            continue;
        }
        for (way, timing) in timings {
            if let Some(timing) = timing {
                way.add(timing);
            }
        }
        created.push(life.created);
        ended.push(life.ended);
    }
    rest.parts.push(("answer to the create".to_owned(), created));
    rest.parts.push(("end of the program".to_owned(), ended));
    Ok([rest, run, container, runsc, bwrap]
        .into_iter()
        .filter(|way| !way.exit.is_empty())
        .collect())
}

/// Runs the program in a sandbox and in a container that stay.
pub(super) fn commands(
    rounds: usize,
    sandboxes: &Sandboxes<'_>,
    docker: &Docker,
) -> anyhow::Result<Vec<Way>> {
    let mut exchange = sandboxes.open()?;
    let id = sandboxes::create(&mut exchange)?;
    let mut rest = Way::new("exec, over a kept connection");
    let mut inner = Samples::default();
    let mut command = Way::new("coldframe sandbox exec");
    let mut container = Way::new("docker exec");
    let inner_loop = format!(
        "import subprocess, time\nbegan = time.monotonic()\n\
         for _ in range({INNER}): subprocess.run(['/bin/echo', 'ready'], stdout=subprocess.PIPE)\n\
         print((time.monotonic() - began) * 1000 / {INNER})"
    );
    for round in 0..=rounds {
        let began = Instant::now();
        sandboxes::exec(&mut exchange, &id, &super::peers::PROGRAM)?;
        let exit = began.elapsed();
        let docker_timing = docker.time_exec()?;
        let command_timing = sandboxes.time_exec_command(&id)?;
        if round == 0 {
            continue;
        }
        rest.add(super::peers::Timing { first: exit, exit });
        container.add(docker_timing);
        command.add(command_timing);
        if round % 10 == 0 {
            let result = sandboxes::exec(&mut exchange, &id, &["python3", "-c", &inner_loop])?;
            let millis = result["stdout"].as_str().unwrap_or_default().trim().parse()?;
            inner.push_millis(millis);
        }
    }
    sandboxes::remove(&mut exchange, &id)?;
    rest.parts.push(("starting and ending the program, measured inside".to_owned(), inner));
    Ok(vec![rest, command, container])
}
