//! Hellos of a real client, cut, changed and made up.

use std::sync::Arc;

use proptest::prelude::*;
use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName};

use super::*;
use crate::tls::provider;

/// The hello of a real client.
fn hello(name: &'static str, alpn: &[&[u8]]) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|one| one.to_vec()).collect();
    let name = ServerName::try_from(name).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// The same handshake message in records of `size` bytes.
fn fragmented(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut result = Vec::new();
    for piece in bytes[5..].chunks(size) {
        result.extend_from_slice(&bytes[..3]);
        result.extend_from_slice(&u16::try_from(piece.len()).unwrap().to_be_bytes());
        result.extend_from_slice(piece);
    }
    result
}

/// C-02, B19: the name is read in its canonical form, however the hello is cut.
#[test]
fn the_name_is_read_however_the_hello_is_cut() {
    let whole = hello("Api.Good.test", &[b"h2", b"http/1.1"]);
    let expected = Hello { name: Some("api.good.test".parse().unwrap()), hidden: false, h2: true };
    for bytes in [whole.clone(), fragmented(&whole, 100), fragmented(&whole, 7)] {
        assert_eq!(Parser::default().parse(&bytes).unwrap(), Some(expected.clone()));
        let mut parser = Parser::default();
        for end in 0..bytes.len() {
            assert_eq!(parser.parse(&bytes[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(parser.parse(&bytes).unwrap(), Some(expected.clone()));
    }
}

#[test]
fn an_address_is_no_name() {
    let bytes = hello("1.2.3.4", &[]);
    let expected = Hello { name: None, hidden: false, h2: false };
    assert_eq!(Parser::default().parse(&bytes).unwrap(), Some(expected));
}

#[test]
fn a_hello_that_hides_another_is_seen() {
    let bytes = hello("api.good.test", &[]);
    // An extension more: lengths of the record, the message and the list grow.
    let extra = [0xfe, 0x0d, 0, 12, 0, 0, 1, 0, 1, 7, 0, 1, 9, 0, 1, 9];
    let mut grown = bytes.clone();
    grown.extend_from_slice(&extra);
    let grow = |bytes: &mut [u8], at: usize| {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + extra.len() as u16;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    };
    grow(&mut grown, 3);
    grow(&mut grown, 7);
    let session = 9 + 34;
    let suites = session + 1 + usize::from(grown[session]);
    let compression =
        suites + 2 + usize::from(u16::from_be_bytes([grown[suites], grown[suites + 1]]));
    let list = compression + 1 + usize::from(grown[compression]);
    grow(&mut grown, list);
    let hello = Parser::default().parse(&grown).unwrap().unwrap();
    assert!(hello.hidden);
}

#[test]
fn what_is_no_hello_is_refused() {
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"SSH-2.0-x\r\n", &[0; 64], &[0x16; 64]] {
        assert!(Parser::default().parse(bytes).is_err(), "{bytes:?}");
    }
}

/// R: a hello that never ends is not kept.
#[test]
fn a_hello_without_end_is_refused() {
    let mut bytes = Vec::new();
    let mut parser = Parser::default();
    loop {
        // Records of four bytes of a message that claims to be the largest.
        let piece: &[u8] = if bytes.is_empty() { &[1, 0, 0xff, 0xff] } else { &[0; 4] };
        bytes.extend_from_slice(&[0x16, 3, 1, 0, 4]);
        bytes.extend_from_slice(piece);
        if parser.parse(&bytes).is_err() {
            return;
        }
        assert!(bytes.len() <= MAX_HELLO + 16);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
        let mut bytes = bytes;
        if cut % 3 == 0 {
            let mut whole = hello("a.test", &[]);
            let at = cut % whole.len();
            whole[at] ^= 1 << (cut % 8);
            bytes = whole;
        }
        drop(Parser::default().parse(&bytes));
        let _seen = walk::walk(&bytes);
    }
}
