//! A question as a client wrote it, and the message that answers it.

use domain::host::{Host, Name};
use hickory_resolver::proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Record, RecordType},
};

/// The longest question; a name has 255 bytes and options are short.
const MAX_QUESTION: usize = 1024;
/// The most records in an answer.
const MAX_RECORDS: usize = 64;
/// What our answers say about the size of a datagram.
const PAYLOAD: u16 = 1232;

/// One well-formed question.
pub(super) struct Question {
    id: u16,
    recursion: bool,
    extended: bool,
    query: Query,
}

/// How it is answered.
pub(super) enum Reply {
    /// The name is there, and there are no records of this type.
    Empty,
    /// These records.
    Records(Vec<Record>),
    /// There is no such name.
    NoSuchName,
    /// We will not.
    Refused,
    /// We could not.
    Failed,
}

/// Reads a question. `None` for bytes that are no question in any way, an answer
/// for what is one and malformed.
pub(super) fn read(bytes: &[u8]) -> Option<Result<Question, Vec<u8>>> {
    let header: [u8; 12] = bytes.get(..12)?.try_into().ok()?;
    let id = u16::from_be_bytes([header[0], header[1]]);
    // An answer to an answer would be the first step of a loop.
    if header[2] & 0x80 != 0 {
        return None;
    }
    let refuse = |code| Some(Err(error(id, code)));
    if header[2] & 0x78 != 0 {
        return refuse(ResponseCode::NotImp);
    }
    // One question and nothing else but options, before anything is believed.
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let plain = count(4) == 1 && count(6) == 0 && count(8) == 0 && count(10) <= 2;
    if bytes.len() > MAX_QUESTION || !plain {
        return refuse(ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(bytes) else { return refuse(ResponseCode::FormErr) };
    let (Some(query), true) = (message.queries.pop(), message.queries.is_empty()) else {
        return refuse(ResponseCode::FormErr);
    };
    if query.query_class() != DNSClass::IN {
        return refuse(ResponseCode::NotImp);
    }
    Some(Ok(Question {
        id,
        recursion: message.metadata.recursion_desired,
        extended: message.edns.is_some(),
        query,
    }))
}

fn error(id: u16, code: ResponseCode) -> Vec<u8> {
    // Twelve bytes: nothing of what was sent is repeated.
    let [high, low] = id.to_be_bytes();
    vec![high, low, 0x80, code.low(), 0, 0, 0, 0, 0, 0, 0, 0]
}

impl Question {
    /// The name as it was written.
    pub(super) fn name(&self) -> String {
        self.query.name().to_ascii()
    }

    /// The type that is asked for.
    pub(super) fn kind(&self) -> RecordType {
        self.query.query_type()
    }

    /// The name in the one form, where it has one.
    pub(super) fn host(&self) -> Option<Name> {
        match self.name().parse().ok()? {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }

    /// The message that answers. The question is repeated as it was written, in
    /// the case in which it was written.
    pub(super) fn reply(self, reply: Reply) -> Option<Vec<u8>> {
        let mut message = Message::new(self.id, MessageType::Response, OpCode::Query);
        message.metadata.recursion_desired = self.recursion;
        message.metadata.recursion_available = true;
        let asked = self.query.name().clone();
        let (code, records) = match reply {
            Reply::Empty => (ResponseCode::NoError, Vec::new()),
            Reply::Records(records) => (ResponseCode::NoError, records),
            Reply::NoSuchName => (ResponseCode::NXDomain, Vec::new()),
            Reply::Refused => (ResponseCode::Refused, Vec::new()),
            Reply::Failed => (ResponseCode::ServFail, Vec::new()),
        };
        message.metadata.response_code = code;
        message.add_query(self.query);
        for mut record in records.into_iter().take(MAX_RECORDS) {
            // Some clients compare the name letter by letter.
            if record.name == asked {
                record.name = asked.clone();
            }
            message.add_answer(record);
        }
        if self.extended {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD);
            message.set_edns(edns);
        }
        message.to_vec().ok().filter(|bytes| bytes.len() <= usize::from(u16::MAX))
    }
}
