//! How busy sandboxes are, and how much fits.

use testkit::{app::App, fake_backend::Room};

use crate::sandboxes::{base, code};

/// A sandbox is measured by the host and says of itself how full it is.
#[tokio::test]
async fn a_sandbox_is_measured_from_both_sides() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let samples = client.metrics(&id).await.unwrap().samples;
    let last = samples.last().unwrap();
    assert_eq!((last.cpu_seconds, last.host_memory_bytes), (Some(1.5), Some(7 << 20)));
    assert_eq!((last.memory_used_bytes, last.disk_total_bytes), (Some(10), Some(50)));
    assert_eq!(last.processes, Some(0));
    // A guest that says nothing takes nothing away from what the host sees.
    app.backend.guest(&id).unwrap().fall_silent();
    // To look leaves no line.
    let query = api::audit::ListAudit { sandbox: Some(id.clone()), ..Default::default() };
    let lines = client.list_audit(&query);
    let actions: Vec<_> = lines.await.unwrap().items.into_iter().map(|line| line.action).collect();
    assert!(!actions.iter().any(|action| action == "guest.look"), "{actions:?}");
    client.terminate(&id).await.unwrap();
    assert_eq!(code(client.metrics(&id).await), "sandbox_not_running");
    app.stop().await;
}

/// S61, U19: a host that is full says so, apart from a quota that is spent, and
/// when to come back.
#[tokio::test]
async fn a_full_host_is_told_apart_from_a_spent_quota() {
    let app = App::start().await;
    let client = app.sandboxes();
    let first = client.create_sandbox(&base()).await.unwrap().id;
    let room = Room { cpus: 1, memory_mib: 600, available_mib: 600, disk_mib: 9999 };
    app.backend.have_room(Some(room));
    let request = reqwest::Client::new()
        .post(app.url("/v1/sandboxes"))
        .bearer_auth(app.tokens.sandboxes.expose())
        .json(&base());
    let answer = request.send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (503, &"10".parse().unwrap())
    );
    let problem: api::problem::Problem = answer.json().await.unwrap();
    assert_eq!(problem.code, "host_full");
    assert!(problem.detail.contains("memory"), "{}", problem.detail);
    // It is on record, and nothing was made.
    assert_eq!(client.limits().await.unwrap().sandboxes_in_use, 1);
    app.backend.have_room(Some(Room { available_mib: 9999, ..room }));
    client.create_sandbox(&base()).await.unwrap();
    client.terminate(&first).await.unwrap();
    app.stop().await;
}

/// The operator's page has a fixed set of series, in a form that is read by
/// machines, and nobody else gets it.
#[tokio::test]
async fn the_operator_gets_the_installation_in_numbers() {
    let app = App::start().await;
    app.sandboxes().create_sandbox(&base()).await.unwrap();
    let get = |token: &domain::token::Token| {
        reqwest::Client::new().get(app.url("/metrics")).bearer_auth(token.expose()).send()
    };
    assert_eq!(reqwest::get(app.url("/metrics")).await.unwrap().status(), 401);
    assert_eq!(get(&app.tokens.sandboxes).await.unwrap().status(), 403);
    let read = async || {
        let answer = get(&app.tokens.admin).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        answer.text().await.unwrap()
    };
    let page = read().await;
    for line in [
        "coldframe_sandboxes{state=\"running\"} 1\n",
        "coldframe_promised_memory_bytes 536870912\n",
        "coldframe_refused_starts_total{code=\"host_full\"} 0\n",
        "coldframe_requests_total{class=\"4xx\"} 2\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    // Every line is a comment or one name, its labels and one number.
    for line in page.lines().filter(|line| !line.starts_with("# ")) {
        let (name, number) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("coldframe_") && number.parse::<f64>().is_ok(), "{line}");
    }
    app.sandboxes().create_sandbox(&base()).await.unwrap();
    let names = |page: &str| {
        page.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let later = read().await;
    let comments = |line: &&String| !line.starts_with('#');
    assert_eq!(
        names(&page).iter().filter(comments).collect::<Vec<_>>(),
        names(&later).iter().filter(comments).collect::<Vec<_>>()
    );
    app.stop().await;
}
