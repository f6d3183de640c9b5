//! Questions to the resolver, and the answers it makes itself.
//!
//! Only as much of DNS as that needs: one question, without compression, for a
//! name of ordinary characters, so that its text is its only form. Everything
//! else is the gateway's, which gets the message as it came.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 12;
/// How long a program may remember an address of ours. The address stays, so
/// this only bounds how long a withdrawn name is still tried.
const TTL: u32 = 60;
/// What a resolver takes over UDP unless it says otherwise.
const PLAIN_SIZE: usize = 512;

const ADDRESS4: u16 = 1;
const ADDRESS6: u16 = 28;
const INTERNET: u16 = 1;
const SIZE_RECORD: u16 = 41;

/// What went wrong, as DNS says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The question cannot be read.
    Format = 1,
    /// Nobody could answer.
    Server = 2,
    /// There is no such name.
    NoName = 3,
    /// This is not asked here.
    NotImplemented = 4,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Lowercase, no dot at its end; absent if it has no text form.
    pub(crate) name: Option<String>,
    kind: u16,
    class: u16,
    /// Where the question ends in its message.
    end: usize,
    /// The longest answer that fits into a datagram.
    pub(crate) size: usize,
}

impl Question {
    /// Reads a message. What is not a question to answer has no reader.
    ///
    /// # Errors
    /// What to answer; nothing where that would answer an answer.
    pub(crate) fn read(message: &[u8]) -> Result<Self, Option<Failure>> {
        let head: &[u8; HEADER] = message.first_chunk().ok_or(None)?;
        if head[2] & 0x80 != 0 {
            return Err(None);
        }
        if head[2] & 0x78 != 0 {
            return Err(Some(Failure::NotImplemented));
        }
        let count = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if (count(4), count(6), count(8)) != (1, 0, 0) {
            return Err(Some(Failure::Format));
        }
        Self::parse(message, count(10)).ok_or(Some(Failure::Format))
    }

    fn parse(message: &[u8], n_additional: u16) -> Option<Self> {
        let (name, at) = name(message)?;
        let word = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
        let (kind, class, end) = (word(at)?, word(at + 2)?, at + 4);
        // The record that says a size is for the root, and usually the only one.
        let size = if n_additional > 0 && message.get(end) == Some(&0) {
            let is_size = word(end + 1)? == SIZE_RECORD;
            if is_size { usize::from(word(end + 3)?).max(PLAIN_SIZE) } else { PLAIN_SIZE }
        } else {
            PLAIN_SIZE
        };
        Some(Self { name, kind, class, end, size })
    }

    /// Whether it asks for an address.
    pub(crate) fn wants_address(&self) -> bool {
        self.class == INTERNET && matches!(self.kind, ADDRESS4 | ADDRESS6)
    }

    /// The answer with one of these addresses, to the message it was read from.
    pub(crate) fn answer(&self, message: &[u8], v4: Ipv4Addr, v6: Ipv6Addr) -> Vec<u8> {
        let address: IpAddr = if self.kind == ADDRESS4 { v4.into() } else { v6.into() };
        let mut answer = self.head(message, 0, 1);
        // The name of the question.
        answer.extend_from_slice(&[0xc0, HEADER as u8]);
        answer.extend_from_slice(&self.kind.to_be_bytes());
        answer.extend_from_slice(&self.class.to_be_bytes());
        answer.extend_from_slice(&TTL.to_be_bytes());
        match address {
            IpAddr::V4(address) => {
                answer.extend_from_slice(&[0, 4]);
                answer.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                answer.extend_from_slice(&[0, 16]);
                answer.extend_from_slice(&address.octets());
            }
        }
        answer
    }

    /// A refusal of the message it was read from.
    pub(crate) fn refuse(&self, message: &[u8], failure: Failure) -> Vec<u8> {
        self.head(message, failure as u8, 0)
    }

    /// An empty answer that asks to come again over TCP.
    pub(crate) fn truncate(&self, message: &[u8]) -> Vec<u8> {
        let mut answer = self.head(message, 0, 0);
        answer[2] |= 0x02;
        answer
    }

    /// Header and question of an answer.
    fn head(&self, message: &[u8], code: u8, n_answers: u8) -> Vec<u8> {
        let mut answer = message[..self.end].to_vec();
        // An answer, recursion as it was asked for; recursion is there.
        answer[2] = 0x80 | message[2] & 0x01;
        answer[3] = 0x80 | code;
        answer[4..HEADER].copy_from_slice(&[0, 1, 0, n_answers, 0, 0, 0, 0]);
        answer
    }
}

/// A refusal of a message whose question cannot be read.
pub(crate) fn refuse_unread(message: &[u8], failure: Failure) -> Option<Vec<u8>> {
    let head: &[u8; HEADER] = message.first_chunk()?;
    let (flags, code) = (0x80 | head[2] & 0x79, 0x80 | failure as u8);
    Some([&head[..2], &[flags, code, 0, 0, 0, 0, 0, 0, 0, 0]].concat())
}

/// What the gateway says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is an answer to pass on.
    Final,
    /// The name may be asked for, and there is no record: an address of ours.
    Permitted,
}

/// Judges a message of the gateway; nothing if it answers something else.
pub(crate) fn judge(question: &[u8], reply: &[u8]) -> Option<Reply> {
    let asked: &[u8; HEADER] = question.first_chunk()?;
    let head: &[u8; HEADER] = reply.first_chunk()?;
    if head[..2] != asked[..2] || head[2] & 0x80 == 0 {
        return None;
    }
    let empty = head[3] & 0x0f == 0 && head[2] & 0x02 == 0 && head[6..8] == [0, 0];
    Some(if empty { Reply::Permitted } else { Reply::Final })
}

/// The name behind the header, if it has a text form, and where it ends.
fn name(message: &[u8]) -> Option<(Option<String>, usize)> {
    let mut text = String::new();
    let (mut at, mut ordinary) = (HEADER, true);
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // Above are pointers, which no question has.
        if length > 63 || at + length - HEADER > 254 {
            return None;
        }
        let label = message.get(at..at + length)?;
        at += length;
        ordinary &= label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if ordinary {
            if !text.is_empty() {
                text.push('.');
            }
            text.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        }
    }
    Some(((ordinary && !text.is_empty()).then_some(text), at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(labels: &[&[u8]], kind: u16) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            message.push(label.len() as u8);
            message.extend_from_slice(label);
        }
        message.push(0);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&[0, 1]);
        message
    }

    #[test]
    fn an_answer_repeats_the_question_and_adds_the_address() {
        let asked = message(&[b"Pkg", b"Example", b"test"], ADDRESS4);
        let question = Question::read(&asked).unwrap();
        assert_eq!(question.name.as_deref(), Some("pkg.example.test"));
        assert!(question.wants_address());
        let v4 = "198.18.0.1".parse().unwrap();
        let answer = question.answer(&asked, v4, Ipv6Addr::LOCALHOST);
        assert_eq!(answer[..8], [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[12..asked.len()], asked[12..]);
        assert_eq!(answer[answer.len() - 6..], [0, 4, 198, 18, 0, 1]);
        let asked = message(&[b"a"], ADDRESS6);
        let answer = Question::read(&asked).unwrap().answer(&asked, v4, Ipv6Addr::LOCALHOST);
        assert_eq!(answer[answer.len() - 18..][..3], [0, 16, 0]);
    }

    /// D: a name whose text could be read in two ways has none.
    #[test]
    fn a_name_with_other_characters_has_no_text() {
        for labels in [&[b"a.b" as &[u8], b"test"], &[b"\xc3\xa4", b"test"], &[b"a\0", b"test"]] {
            let question = Question::read(&message(labels, ADDRESS4)).unwrap();
            assert_eq!(question.name, None, "{labels:?}");
        }
        assert_eq!(Question::read(&message(&[], ADDRESS4)).unwrap().name, None);
    }

    #[test]
    fn what_is_not_one_question_is_refused() {
        let mut answer = message(&[b"a"], 1);
        answer[2] |= 0x80;
        assert_eq!(Question::read(&answer), Err(None));
        let mut update = message(&[b"a"], 1);
        update[2] |= 0x28;
        assert_eq!(Question::read(&update), Err(Some(Failure::NotImplemented)));
        let mut two = message(&[b"a"], 1);
        two[5] = 2;
        assert_eq!(Question::read(&two), Err(Some(Failure::Format)));
        let mut pointer = message(&[b"a"], 1);
        pointer[12] = 0xc0;
        assert_eq!(Question::read(&pointer), Err(Some(Failure::Format)));
        let long = [&[b'x'; 63][..]; 4];
        assert_eq!(Question::read(&message(&long, 1)), Err(Some(Failure::Format)));
        assert_eq!(Question::read(&[0; 11]), Err(None));
    }

    #[test]
    fn the_size_is_what_the_program_says() {
        let mut asked = message(&[b"a"], ADDRESS4);
        assert_eq!(Question::read(&asked).unwrap().size, 512);
        asked[11] = 1;
        asked.extend_from_slice(&[0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Question::read(&asked).unwrap().size, 4096);
    }

    #[test]
    fn a_reply_to_something_else_is_none() {
        let asked = message(&[b"a"], ADDRESS4);
        let mut reply = asked.clone();
        assert_eq!(judge(&asked, &reply), None, "it is the question itself");
        reply[2] |= 0x80;
        assert_eq!(judge(&asked, &reply), Some(Reply::Permitted));
        reply[3] = 3;
        assert_eq!(judge(&asked, &reply), Some(Reply::Final));
        reply[0] ^= 1;
        assert_eq!(judge(&asked, &reply), None);
        assert_eq!(judge(&asked, &[]), None);
    }

    proptest! {
        /// Y, G-01: no bytes make it panic, and what it answers is an answer.
        #[test]
        fn no_message_makes_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), fix: bool) {
            if fix && bytes.len() >= HEADER {
                bytes[2..10].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0]);
            }
            match Question::read(&bytes) {
                Ok(question) => {
                    let v6 = Ipv6Addr::LOCALHOST;
                    for answer in [
                        question.answer(&bytes, Ipv4Addr::LOCALHOST, v6),
                        question.refuse(&bytes, Failure::Server),
                        question.truncate(&bytes),
                    ] {
                        prop_assert!(judge(&bytes, &answer).is_some());
                    }
                }
                Err(Some(failure)) => {
                    let answer = refuse_unread(&bytes, failure).unwrap();
                    prop_assert_eq!(judge(&bytes, &answer), Some(Reply::Final));
                }
                Err(None) => {}
            }
        }
    }
}
