//! The generated documents are the ones in the repository.
//!
//! `UPDATE_GOLDEN=1 cargo test -p server` writes them anew.

use std::{fs, path::PathBuf};

fn check(name: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/reference/{name} is not what the code says; \
         run UPDATE_GOLDEN=1 cargo test -p server reference, and look at the difference"
    );
}

#[test]
fn the_api_reference_is_current() {
    let mut text = serde_json::to_string_pretty(&server::openapi()).unwrap();
    text.push('\n');
    check("openapi.json", &text);
}

/// The server tells what it speaks, to anyone.
#[tokio::test]
async fn the_api_reference_can_be_read_without_a_token() {
    let app = testkit::app::App::start().await;
    let answer = reqwest::get(app.url("/v1/openapi.json")).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let document: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(document, serde_json::to_value(server::openapi()).unwrap());
    // What is beside it is as closed as before.
    assert_eq!(reqwest::get(app.url("/v1/openapi")).await.unwrap().status(), 401);
    app.stop().await;
}

/// U14: every endpoint and the scope it needs, on one page.
#[test]
fn the_authorization_table_is_current() {
    check("authz.txt", &server::authorization_table());
}

/// Every operation says what it does, in one line and a sentence's worth of tag.
#[test]
fn every_operation_is_described() {
    let document = serde_json::to_value(server::openapi()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                operation["summary"].as_str().is_some_and(|text| !text.is_empty()),
                "{method} {path}"
            );
            assert!(operation["tags"][0].is_string(), "{method} {path}");
            assert!(operation["security"].is_array(), "{method} {path}");
        }
    }
}
