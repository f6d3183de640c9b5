//! Many sandboxes created at the same moment.

use std::{sync::Barrier, thread, time::Instant};

use anyhow::Context;
use serde::Serialize;

use super::{
    samples::Samples,
    sandboxes::{self, Sandboxes},
};

/// How often a single one is created, to compare with.
const SINGLE: usize = 7;

/// What became of `sandboxes` creates that began together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Crowd {
    pub(super) sandboxes: usize,
    /// Time to the answer of each create.
    pub(super) created: Samples,
}

/// Measures a single create (a crowd of one), then each of `counts`.
pub(super) fn measure(counts: &[usize], server: &Sandboxes<'_>) -> anyhow::Result<Vec<Crowd>> {
    let mut single = Samples::default();
    for _ in 0..SINGLE {
        let (created, ids) = create(1, server)?;
        single.push_millis(created.median());
        remove(server, &ids)?;
    }
    let mut crowds = vec![Crowd { sandboxes: 1, created: single }];
    for count in counts {
        let (created, ids) = create(*count, server)?;
        remove(server, &ids)?;
        crowds.push(Crowd { sandboxes: *count, created });
    }
    Ok(crowds)
}

fn create(count: usize, server: &Sandboxes<'_>) -> anyhow::Result<(Samples, Vec<String>)> {
    let start = Barrier::new(count);
    let results: Vec<_> = thread::scope(|scope| {
        let one = || -> anyhow::Result<(f64, String)> {
            let exchange = server.open();
            start.wait();
            let began = Instant::now();
            let id = sandboxes::create(&mut exchange?)?;
            Ok((began.elapsed().as_secs_f64() * 1000.0, id))
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut taken = Vec::new();
    let mut ids = Vec::new();
    for result in results {
        let (millis, id) = result.ok().context("a thread panicked")??;
        taken.push(millis);
        ids.push(id);
    }
    Ok((taken.into_iter().collect(), ids))
}

fn remove(server: &Sandboxes<'_>, ids: &[String]) -> anyhow::Result<()> {
    let mut exchange = server.open()?;
    ids.iter().try_for_each(|id| sandboxes::remove(&mut exchange, id))
}
