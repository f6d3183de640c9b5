//! A sandbox that takes all it can exhausts itself, and its neighbour works on.

use std::{fs, time::Instant};

use backends::qemu::Lifetime;
use sandbox::backend::Backend as _;
use testkit::fixtures::sandbox_id;
use tokio::time::timeout;

use crate::rig::{BOUND, Rig, run};

/// Each takes one thing until there is no more of it, and then stops.
const GREEDY: [(&str, &str); 5] = [
    ("processors", "for n in 1 2 3 4; do timeout 4 sh -c 'while :; do :; done' & done; wait"),
    ("memory", "timeout 20 python3 -c 'x = [bytearray(1 << 24) for _ in range(1 << 12)]'; true"),
    ("disk", "dd if=/dev/zero of=/tmp/full bs=1M 2>&1; rm /tmp/full"),
    ("console", "timeout 4 sh -c 'yes 0123456789 > /dev/console'; true"),
    ("processes", "for n in $(seq 20000); do sleep 60 & done 2>/dev/null; true"),
];

/// Processor time of a process on the host, in ticks of 10 ms.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap()).collect();
    fields[0] + fields[1]
}

/// S12, S13, S14
#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_sandbox_exhausts_only_itself() {
    let Some(rig) = Rig::open("limits", Lifetime::Outlives).await else { return };
    let neighbour = sandbox_id();
    rig.backend.create(&neighbour, &rig.spec).await.unwrap();
    for (epoch, (what, command)) in (1..).zip(GREEDY) {
        let id = sandbox_id();
        rig.backend.create(&id, &rig.spec).await.unwrap();
        let pid = rig.pid(&id);
        let (begun, before) = (Instant::now(), ticks(pid));
        // What it may do to itself includes its own end.
        let greedy = async {
            tokio::select! {
                printed = run(&*rig.backend, &id, 1, "root", command) => format!("{printed:?}"),
                reason = rig.backend.wait(&id) => reason,
            }
        };
        let beside = run(&*rig.backend, &neighbour, epoch, "user", "echo still here");
        let (greedy, beside) =
            timeout(BOUND, Box::pin(async { tokio::join!(greedy, beside) })).await.unwrap();
        println!("{what}: {}", greedy.chars().take(200).collect::<String>());
        assert_eq!(beside.unwrap().trim(), "still here", "{what}");
        if let Ok(console) = rig.backend.console(&id).await {
            assert!(console.len() <= 64 * 1024, "{what}");
            let used = ticks(pid) - before;
            // One processor and QEMU's own share, and what the clock cannot tell.
            let allowed = begun.elapsed().as_millis() * 125 / 1000 + 20;
            assert!(u128::from(used) <= allowed, "{what}: {used} of {allowed} ticks");
        }
        rig.backend.destroy(&id).await.unwrap();
    }
    rig.backend.destroy(&neighbour).await.unwrap();
}
