//! The authority of one sandbox, under which its TLS is opened where a rule
//! asks for that.
//!
//! Its key is derived from the installation's root and the sandbox's id, so
//! nothing is stored for a sandbox, a gateway that was restarted has the same
//! authorities, and none can sign for another sandbox. The key never leaves this
//! process; the certificate does, into the sandbox's trust stores.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use aws_lc_rs::{
    hkdf,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use domain::{host::Host, id::SandboxId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use zeroize::ZeroizeOnDrop;

/// The secret of the installation that every authority comes from.
#[derive(Clone, ZeroizeOnDrop)]
pub struct RootKey([u8; 32]);

impl RootKey {
    /// A key from 32 random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootKey")
    }
}

/// Certificates kept, of each of two generations.
const CACHED: usize = 512;
/// A leaf is valid for this long, and made anew when half of it has passed.
const LEAF: Duration = Duration::from_secs(24 * 3600);
/// Clocks inside a sandbox may be behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The library would not.
    #[error("a certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// The key was not accepted.
    #[error("a key could not be derived")]
    Key,
}

/// Every authority, and the leaves that were made.
#[derive(Debug)]
pub struct Authorities {
    root: RootKey,
    cache: Mutex<Cache>,
}

/// Two generations: when the young one is full it becomes the old one, so what
/// is used stays and what is not goes, without a list of who came when.
#[derive(Default)]
struct Cache {
    young: HashMap<(SandboxId, Host), Leaf>,
    old: HashMap<(SandboxId, Host), Leaf>,
}

type Leaf = (Arc<CertifiedKey>, SystemTime);

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("leaves", &(self.young.len() + self.old.len())).finish()
    }
}

impl Authorities {
    /// Authorities under `root`.
    pub fn new(root: RootKey) -> Self {
        Self { root, cache: Mutex::default() }
    }

    /// The certificate that the sandbox trusts, as PEM.
    pub fn certificate(&self, sandbox: &SandboxId) -> Result<String, AuthorityError> {
        let key = self.key(sandbox)?;
        Ok(authority(sandbox).self_signed(&key)?.pem())
    }

    /// A certificate for `host` that the sandbox accepts.
    pub fn leaf(
        &self,
        sandbox: &SandboxId,
        host: &Host,
        now: SystemTime,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let wanted = (sandbox.clone(), host.clone());
        if let Some(leaf) = self.cache().get(&wanted, now) {
            return Ok(leaf);
        }
        let leaf = self.issue(sandbox, host, now)?;
        self.cache().put(wanted, (leaf.clone(), now));
        Ok(leaf)
    }

    /// Forgets what was made for a sandbox.
    pub fn forget(&self, sandbox: &SandboxId) {
        let mut cache = self.cache();
        cache.young.retain(|(of, _), _| of != sandbox);
        cache.old.retain(|(of, _), _| of != sandbox);
    }

    fn issue(
        &self,
        sandbox: &SandboxId,
        host: &Host,
        now: SystemTime,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let issuer = Issuer::new(authority(sandbox), self.key(sandbox)?);
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(address.get()),
        }];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now + LEAF).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &issuer)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signing = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der)
            .map_err(|_| AuthorityError::Key)?;
        Ok(Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signing)))
    }

    /// The key of a sandbox's authority, the same each time.
    fn key(&self, sandbox: &SandboxId) -> Result<KeyPair, AuthorityError> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"coldframe gateway authority");
        let secret = salt.extract(&self.root.0);
        // Not every number is a key of this curve; one in 2^32 is not.
        for attempt in 0..4_u8 {
            let info = [sandbox.as_str().as_bytes(), &[attempt]];
            let mut scalar = [0; 32];
            secret
                .expand(&info, hkdf::HKDF_SHA256)
                .and_then(|okm| okm.fill(&mut scalar))
                .map_err(|_| AuthorityError::Key)?;
            if let Some(pair) = p256(&scalar) {
                return Ok(pair);
            }
        }
        Err(AuthorityError::Key)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn get(&mut self, wanted: &(SandboxId, Host), now: SystemTime) -> Option<Arc<CertifiedKey>> {
        let fresh = |(_, made): &Leaf| now.duration_since(*made).is_ok_and(|age| age < LEAF / 2);
        if let Some(leaf) = self.young.get(wanted).filter(|leaf| fresh(leaf)) {
            return Some(leaf.0.clone());
        }
        let leaf = self.old.remove(wanted).filter(fresh)?;
        self.put(wanted.clone(), leaf.clone());
        Some(leaf.0)
    }

    fn put(&mut self, wanted: (SandboxId, Host), leaf: Leaf) {
        if self.young.len() >= CACHED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(wanted, leaf);
    }
}

/// What the certificate of an authority says; nothing in it depends on when it
/// is made.
fn authority(sandbox: &SandboxId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Coldframe");
    params.distinguished_name.push(DnType::CommonName, sandbox.as_str());
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2046, 1, 1);
    params.serial_number = Some(SerialNumber::from_slice(&[1]));
    params
}

/// A key pair from its secret number: wrapped as RFC 5915 has it, without the
/// public half, which the library works out.
fn p256(scalar: &[u8; 32]) -> Option<KeyPair> {
    const HEAD: [u8; 7] = [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20];
    const CURVE: [u8; 12] =
        [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    let der = [HEAD.as_slice(), scalar, &CURVE].concat();
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, &der).ok()?;
    let pkcs8 = pair.to_pkcs8v1().ok()?;
    let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec());
    KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ECDSA_P256_SHA256).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(byte: u8) -> SandboxId {
        SandboxId::from_random([byte; 16])
    }

    /// The same after a restart, another for another sandbox and another root.
    #[test]
    fn an_authority_depends_on_the_root_and_the_sandbox_alone() {
        let public = |root: u8, of: u8| {
            let all = Authorities::new(RootKey::from_random([root; 32]));
            all.key(&sandbox(of)).unwrap().public_key_raw().to_vec()
        };
        assert_eq!(public(1, 1), public(1, 1));
        assert_ne!(public(1, 1), public(1, 2));
        assert_ne!(public(1, 1), public(2, 1));
    }

    /// R: names that a guest makes up do not grow the cache.
    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        let all = Authorities::new(RootKey::from_random([1; 32]));
        let now = SystemTime::now();
        let host = |n: usize| -> Host { format!("h{n}.test").parse().unwrap() };
        let leaf = all.leaf(&sandbox(1), &host(0), now).unwrap();
        for n in 0..5000 {
            cache.put((sandbox(1), host(n)), (leaf.clone(), now));
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * CACHED);
    }

    #[test]
    fn a_leaf_is_made_once_and_again_when_it_is_old() {
        let all = Authorities::new(RootKey::from_random([1; 32]));
        let host: Host = "a.test".parse().unwrap();
        let now = SystemTime::now();
        let first = all.leaf(&sandbox(1), &host, now).unwrap();
        assert!(Arc::ptr_eq(&first, &all.leaf(&sandbox(1), &host, now).unwrap()));
        assert!(!Arc::ptr_eq(&first, &all.leaf(&sandbox(1), &host, now + LEAF).unwrap()));
        assert!(!Arc::ptr_eq(&first, &all.leaf(&sandbox(2), &host, now).unwrap()));
    }
}
