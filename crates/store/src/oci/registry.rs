//! Images from a registry, by the operator's table of names.
//!
//! The table says which server a name stands for. Nothing is asked of a server
//! that it does not name: not by a redirect, not by a registry that sends its
//! clients elsewhere for a token. An address of this network is spoken to only
//! where the entry says `internal`; a name whose answer holds one is refused, and
//! the connection goes to the address that was judged.
//!
//! Every blob is written under its digest and checked as it comes in; reading
//! them back checks again ([`super::Blobs`]).
//!
//! Deliberately absent: writing to a registry, and retries. A fetch that broke
//! off is repeated as a whole.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use domain::{image::digest::Digest, secret::Secret, template::description::Reference};
use reqwest::{
    Client, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header,
};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::{
    OciError,
    address::is_internal,
    document::{Document, MAX_DOCUMENT, MAX_LAYERS, choose},
};

/// How long a connection may take to come up, and the next byte to come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Redirects that are followed.
const MAX_REDIRECTS: usize = 4;
/// The most compressed bytes of an image.
const MAX_BYTES: u64 = 8 << 30;
/// The largest answer of a token server.
const MAX_TOKEN: u64 = 64 * 1024;
/// What a manifest may be.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// What names of registries stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registries(BTreeMap<String, Registry>);

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// Where it is.
    url: Url,
    /// Hosts it may send its clients to.
    also: Vec<String>,
    /// Whether these may have addresses of this network.
    internal: bool,
    /// The file with `account:password`, if it wants one.
    login: Option<PathBuf>,
}

impl FromStr for Registries {
    type Err = String;

    /// Reads `NAME=URL also=HOST login=FILE internal, NAME=…`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut table = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, rest) = entry
                .split_once('=')
                .ok_or_else(|| format!("{entry:?} is not written like NAME=URL"))?;
            let name = name.trim().to_owned();
            let registry = registry(rest).map_err(|error| format!("{name}: {error}"))?;
            if table.insert(name.clone(), registry).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(Self(table))
    }
}

fn registry(text: &str) -> Result<Registry, String> {
    let mut words = text.split_whitespace();
    let url = words.next().unwrap_or_default();
    let url: Url = url.parse().map_err(|_| format!("{url:?} is no URL"))?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !url.has_host() || !plain {
        return Err("the URL is scheme, host, port and perhaps a path".to_owned());
    }
    let mut registry = Registry { url, also: Vec::new(), internal: false, login: None };
    for word in words {
        match word.split_once('=') {
            Some(("also", host)) if !host.is_empty() => registry.also.push(host.to_owned()),
            Some(("login", path)) if path.starts_with('/') => registry.login = Some(path.into()),
            None if word == "internal" => registry.internal = true,
            _ => return Err(format!("{word:?} is not also=HOST, login=/FILE or internal")),
        }
    }
    match registry.url.scheme() {
        "https" => Ok(registry),
        // Anyone on the way could give another image for a tag.
        "http" if registry.internal => Ok(registry),
        _ => Err("only an internal registry can be spoken to without TLS".to_owned()),
    }
}

impl Registries {
    /// Fetches an image's documents and layers into the folder `into`, each under
    /// the digits of its digest. Returns the digest of its manifest.
    pub async fn fetch(&self, reference: &Reference, into: &Path) -> Result<Digest, OciError> {
        let registry = self.0.get(&reference.registry).ok_or_else(|| {
            let known: Vec<_> = self.0.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            OciError::Forbidden(format!(
                "no registry is called {:?} here; the operator's setting `registries` names: \
                 {known}",
                reference.registry
            ))
        })?;
        let mut session = Session::open(registry, &reference.repository)?;
        let asked = reference.digest.map_or(reference.tag.clone(), |digest| digest.to_string());
        let mut bytes = session.manifest(&asked).await?;
        let mut digest = Digest::of(&bytes);
        if reference.digest.is_some_and(|expected| expected != digest) {
            return Err(OciError::Digest { what: "the manifest" });
        }
        // The list of manifests only chooses; the one that is chosen names the image.
        if let Document::Index { manifests } = super::parse(&bytes)? {
            let chosen = choose(&manifests, None).map_err(OciError::Unusable)?;
            bytes = session.manifest(&chosen.digest.to_string()).await?;
            digest = Digest::of(&bytes);
            if digest != chosen.digest {
                return Err(OciError::Digest { what: "the manifest" });
            }
        }
        let Document::Manifest { config, layers } = super::parse(&bytes)? else {
            return Err(OciError::Unusable("its indexes are nested".to_owned()));
        };
        let total = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
        if layers.len() > MAX_LAYERS || total > MAX_BYTES || config.size > MAX_DOCUMENT {
            return Err(OciError::Unusable("the image is too large".to_owned()));
        }
        let path = into.join(digest.hex());
        tokio::fs::write(&path, &bytes).await.map_err(OciError::io(path))?;
        session.blob(config.digest, config.size, into).await?;
        for layer in &layers {
            session.blob(layer.digest, layer.size, into).await?;
        }
        Ok(digest)
    }
}

/// One repository of one registry.
struct Session<'a> {
    registry: &'a Registry,
    repository: &'a str,
    client: Client,
    authorization: Option<Secret>,
}

impl<'a> Session<'a> {
    fn open(registry: &'a Registry, repository: &'a str) -> Result<Self, OciError> {
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(PATIENCE)
            .read_timeout(PATIENCE)
            .dns_resolver(Arc::new(Judging { internal: registry.internal }))
            .user_agent(concat!("coldframe/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(told)?;
        Ok(Self { registry, repository, client, authorization: None })
    }

    fn url(&self, kind: &str, name: &str) -> Result<Url, OciError> {
        let base = self.registry.url.as_str().trim_end_matches('/');
        let text = format!("{base}/v2/{}/{kind}/{name}", self.repository);
        text.parse().map_err(|_| OciError::Registry("its address is none".to_owned()))
    }

    async fn manifest(&mut self, name: &str) -> Result<Vec<u8>, OciError> {
        let url = self.url("manifests", name)?;
        let response = self.get(url, MANIFESTS).await?;
        bounded(response, MAX_DOCUMENT).await
    }

    /// Writes a blob into `into`, unless it is there.
    async fn blob(&mut self, digest: Digest, size: u64, into: &Path) -> Result<(), OciError> {
        let path = into.join(digest.hex());
        if path.exists() {
            return Ok(());
        }
        let url = self.url("blobs", &digest.to_string())?;
        let mut response = self.get(url, "*/*").await?;
        let mut file = tokio::fs::File::create(&path).await.map_err(OciError::io(&path))?;
        let mut hasher = Sha256::new();
        let mut left = size;
        while let Some(piece) = response.chunk().await.map_err(told)? {
            left =
                left.checked_sub(piece.len() as u64).ok_or(OciError::Digest { what: "a layer" })?;
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(OciError::io(&path))?;
        }
        file.flush().await.map_err(OciError::io(&path))?;
        if left > 0 || Digest::from_bytes(hasher.finalize().into()) != digest {
            return Err(OciError::Digest { what: "a layer" });
        }
        Ok(())
    }

    /// Asks, with a token if one is wanted, and follows where it may.
    async fn get(&mut self, url: Url, accept: &str) -> Result<Response, OciError> {
        let mut url = url;
        let mut asked_token = false;
        for _ in 0..=MAX_REDIRECTS {
            self.judge(&url)?;
            let mut request = self.client.get(url.clone()).header(header::ACCEPT, accept);
            // What lets us in is for the registry alone, not for where it points.
            if let Some(authorization) = &self.authorization
                && url.origin() == self.registry.url.origin()
            {
                request = request.header(header::AUTHORIZATION, authorization.expose());
            }
            let response = request.send().await.map_err(told)?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED && !asked_token {
                asked_token = true;
                self.authorization = Some(self.authorize(&response).await?);
            } else if status.is_redirection() {
                let target = response.headers().get(header::LOCATION);
                let target = target.and_then(|value| url.join(value.to_str().ok()?).ok());
                url = target.ok_or_else(|| OciError::Registry("it points nowhere".to_owned()))?;
            } else if status.is_success() {
                return Ok(response);
            } else {
                let what = match status {
                    StatusCode::NOT_FOUND => "it has no such image".to_owned(),
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                        "it demands a login; set login=/FILE in `registries`".to_owned()
                    }
                    _ => format!("it answers with status {status}"),
                };
                return Err(OciError::Registry(what));
            }
        }
        Err(OciError::Registry("it points from one place to the next".to_owned()))
    }

    /// Whether the table names the host of `url`.
    fn judge(&self, url: &Url) -> Result<(), OciError> {
        let registry = self.registry;
        let host = url.host_str().unwrap_or_default();
        let named = url.origin() == registry.url.origin()
            || registry.also.iter().any(|also| also == host)
                && (url.scheme() == "https" || registry.internal && url.scheme() == "http");
        if !named {
            return Err(OciError::Forbidden(format!(
                "the registry sends its clients to {host}, which its entry in `registries` does \
                 not name; the operator can add also={host}"
            )));
        }
        // A resolver is asked for names only.
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if literal.is_ok_and(is_internal) && !registry.internal {
            return Err(OciError::Forbidden(internal(host)));
        }
        Ok(())
    }

    /// Answers the demand of `refusal` for a token or a password.
    async fn authorize(&self, refusal: &Response) -> Result<Secret, OciError> {
        let no = |what: &str| OciError::Registry(what.to_owned());
        let demand = refusal.headers().get(header::WWW_AUTHENTICATE);
        let demand = demand.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let login = self.login().await?;
        let (scheme, rest) = demand.split_once(' ').unwrap_or((demand, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return login.ok_or_else(|| no("it demands a login; set login=/FILE in `registries`"));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(no("it demands something else than a token"));
        }
        let fields = fields(rest);
        let realm = fields.get("realm").and_then(|realm| realm.parse::<Url>().ok());
        let mut realm = realm.ok_or_else(|| no("it does not say where tokens come from"))?;
        self.judge(&realm)?;
        if let Some(service) = fields.get("service") {
            realm.query_pairs_mut().append_pair("service", service);
        }
        let scope = format!("repository:{}:pull", self.repository);
        realm.query_pairs_mut().append_pair("scope", &scope);
        let mut request = self.client.get(realm);
        if let Some(login) = login {
            request = request.header(header::AUTHORIZATION, login.expose());
        }
        let response = request.send().await.map_err(told)?;
        if !response.status().is_success() {
            return Err(no("it gives no token for this image"));
        }
        #[derive(serde::Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let body = bounded(response, MAX_TOKEN).await?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| no("its token cannot be read"))?;
        let token = answer.token.or(answer.access_token);
        let token = token.ok_or_else(|| no("it gives no token for this image"))?;
        Ok(Secret::new(format!("Bearer {token}")))
    }

    /// What the operator's file says, as the header has it.
    async fn login(&self) -> Result<Option<Secret>, OciError> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let Some(path) = &self.registry.login else { return Ok(None) };
        let text = tokio::fs::read_to_string(path).await.map_err(OciError::io(path))?;
        Ok(Some(Secret::new(format!("Basic {}", STANDARD.encode(text.trim())))))
    }
}

/// `key="value",key="value"` of a demand.
fn fields(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let Some((value, after)) = after.strip_prefix('"').and_then(|text| text.split_once('"'))
        else {
            break;
        };
        let key = key.trim_matches([',', ' ']).to_ascii_lowercase();
        fields.insert(key, value.to_owned());
        rest = after;
    }
    fields
}

async fn bounded(mut response: Response, most: u64) -> Result<Vec<u8>, OciError> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(told)? {
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(OciError::Registry("its answer is too long".to_owned()));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Looks names up and refuses those that lead into this network.
#[derive(Debug)]
struct Judging {
    internal: bool,
}

impl Resolve for Judging {
    #[expect(
        clippy::disallowed_methods,
        reason = "no sandbox chooses this name: it stands in the operator's table, and its \
                  addresses are judged here"
    )]
    fn resolve(&self, name: Name) -> Resolving {
        let internal_is_fine = self.internal;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            if !internal_is_fine && found.iter().any(|address| is_internal(address.ip())) {
                return Err(internal(name.as_str()).into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

fn internal(host: &str) -> String {
    format!("{host} is an address of this network, and its entry in `registries` is not internal")
}

/// What went wrong, without the URL, and the reason that lies deepest.
fn told(error: reqwest::Error) -> OciError {
    let error = error.without_url();
    let mut reason: &dyn std::error::Error = &error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    OciError::Registry(reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_names_servers_and_what_they_may_do() {
        let text = "hub=https://registry.example also=auth.example login=/etc/hub, \
                    lab=http://127.0.0.1:5000 internal";
        let Registries(table) = text.parse().expect("a table");
        assert_eq!(table["hub"].also, ["auth.example"]);
        assert!(table["lab"].internal && !table["hub"].internal);
        for wrong in [
            "hub",
            "hub=registry.example",
            "hub=http://registry.example",
            "hub=https://a:b@registry.example",
            "hub=https://registry.example login=relative",
            "hub=https://registry.example internel",
            "a=https://x.example, a=https://y.example",
        ] {
            assert!(wrong.parse::<Registries>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_demand_for_a_token_is_read() {
        let fields =
            fields(r#"realm="https://a.example/t",service="s x",scope="repository:a:pull""#);
        assert_eq!(fields["realm"], "https://a.example/t");
        assert_eq!(fields["service"], "s x");
        assert!(super::fields("realm=none").is_empty());
    }

    #[test]
    fn an_address_of_this_network_needs_the_operators_word() {
        let registry = registry("https://registry.example also=10.0.0.1").expect("an entry");
        let session = Session::open(&registry, "a").expect("a session");
        for (url, allowed) in [
            ("https://registry.example/v2/", true),
            ("https://registry.example:444/v2/", false),
            ("http://registry.example/v2/", false),
            ("https://elsewhere.example/", false),
            ("https://10.0.0.1/", false),
        ] {
            let judged = session.judge(&url.parse().expect("a URL"));
            assert_eq!(judged.is_ok(), allowed, "{url}");
        }
    }
}
