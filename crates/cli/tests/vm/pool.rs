//! Machines that are kept ready, with real ones.

use std::{collections::BTreeSet, time::Instant};

use crate::{service::Service, site::until};

/// A sandbox takes a machine of the pool over, is somebody of its own, and the
/// pool is filled again; a server that is killed leaves none of it.
#[test]
fn a_sandbox_takes_a_ready_machine_over() {
    let Some(mut service) = Service::start_with(&[("COLDFRAME_WARM_POOL", "base:small=2")]) else {
        return;
    };
    let filled = |service: &Service, known: usize| {
        until("the pool is filled", || match service.state.sandboxes().len() {
            n if n == known + 2 => Ok(()),
            n => Err(format!("{n} machines")),
        });
    };
    filled(&service, 0);
    assert_eq!(service.ok(&["sandbox", "list", "--json"]), "[]");
    let ready = service.state.sandboxes();
    let begun = Instant::now();
    let sandbox = service.create(&["--env", "NAME=value"]);
    println!("a claimed sandbox ran after {:?}", begun.elapsed());
    assert!(ready.contains(&sandbox), "{sandbox} was not taken from {ready:?}");
    let told = service.shell(&sandbox, "hostname; echo $NAME");
    assert_eq!(told.text(), format!("{}\nvalue\n", sandbox.replace('_', "-")));
    filled(&service, 1);
    let waiting: BTreeSet<_> = &service.state.sandboxes() - &BTreeSet::from([sandbox.clone()]);
    assert_eq!(service.end("-KILL"), None);
    service.again();
    filled(&service, 1);
    assert!(
        service.state.sandboxes().is_disjoint(&waiting),
        "a machine of the last server is left"
    );
    assert_eq!(service.shell(&sandbox, "echo alive").text(), "alive\n");
    service.ok(&["sandbox", "kill", &sandbox]);
    assert_eq!(service.end("-TERM"), Some(0));
    service.state.nothing_is_left_of(&waiting);
}
