//! stub
pub(crate) fn owner(id: &str) -> Result<u32, guest_protocol::connect::Error> {
    id.split_once('-').and_then(|(uid, _)| uid.parse().ok()).ok_or_else(|| guest_protocol::connect::Error::new(guest_protocol::connect::Code::NotFound, format!("watcher {id} not found")))
}
