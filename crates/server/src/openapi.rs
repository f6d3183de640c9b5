//! The API reference, derived from the handlers, and the authorization table.

use utoipa::{
    OpenApi as _,
    openapi::{
        InfoBuilder, OpenApi,
        path::{Operation, PathItem},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::{guest::table, router};

#[derive(utoipa::OpenApi)]
#[openapi(tags(
    (name = "sandboxes", description = "Machines for code that nobody trusts"),
    (name = "snapshots", description = "What sandboxes start from again"),
    (name = "files", description = "Files inside a sandbox, as raw bytes"),
    (name = "guest", description = "The API inside a sandbox, streaming"),
    (name = "volumes", description = "Disks that outlive sandboxes, and their checkpoints"),
    (name = "images", description = "What sandboxes start from"),
    (name = "templates", description = "What sandboxes start from, built from a description"),
    (name = "tokens", description = "Who may call"),
    (name = "egress", description = "What sandboxes may reach, and what they did"),
    (name = "audit", description = "Who did what"),
    (name = "server", description = "The installation"),
))]
struct Base;

/// The OpenAPI document of this version.
pub fn openapi() -> OpenApi {
    let mut document = Base::openapi();
    document.info = InfoBuilder::new()
        .title("Coldframe")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Self-hosted sandboxes for untrusted code."))
        .license(Some(utoipa::openapi::LicenseBuilder::new().name("Apache-2.0").build()))
        .build();
    document.merge(router::open_routes().into_openapi());
    let mut versioned = router::routes().into_openapi();
    // The router's spelling of a parameter that spans slashes is not OpenAPI's.
    let paths = std::mem::take(&mut versioned.paths.paths);
    let spelt = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item));
    versioned.paths.paths = spelt.collect();
    document.merge(versioned);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    document
        .components
        .get_or_insert_default()
        .add_security_scheme("token", SecurityScheme::Http(bearer));
    document
}

/// Every endpoint with the scopes of which a token needs one, a line each; `-`
/// needs no token.
///
/// The two routes of the guest edge are replaced by what their table allows, and
/// the audit log of one sandbox has a line of its own.
pub fn authorization_table() -> String {
    let mut lines = Vec::new();
    for (path, item) in openapi().paths.paths {
        for (method, operation) in operations(&item) {
            if path.ends_with("/guest/{path}") {
                continue;
            }
            lines.push(format!("{method} {path} {}", scopes(operation)));
        }
    }
    lines.push("GET /v1/audit?sandbox={id} sandboxes:read|admin".to_owned());
    for (method, path, route) in table::TABLE {
        lines.push(format!("{method} /v1/sandboxes/{{id}}/guest{path} {}", route.scope()));
    }
    lines.sort();
    lines.join("\n") + "\n"
}

/// The operations of a path by method.
pub(crate) fn operations(item: &PathItem) -> Vec<(&'static str, &Operation)> {
    let all = [
        ("GET", &item.get),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    all.into_iter().filter_map(|(name, found)| Some((name, found.as_ref()?))).collect()
}

fn scopes(operation: &Operation) -> String {
    let value = serde_json::to_value(&operation.security).unwrap_or_default();
    let alternatives = value.as_array().into_iter().flatten();
    let words = alternatives.filter_map(|alternative| alternative["token"][0].as_str());
    let joined = words.collect::<Vec<_>>().join("|");
    if joined.is_empty() { "-".to_owned() } else { joined }
}
