//! When a template may be captured.

use std::time::Duration;

use domain::template::description::{Ready, When};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    plan::{State, program},
    workshop::{Said, Workshop},
};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// Shows the ports on which something listens.
const PORTS: &str = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null";

/// Waits until it is ready.
///
/// # Errors
/// A sentence that says what was waited for in vain.
pub(super) async fn wait(shop: &Workshop<'_>, ready: &Ready, state: &State) -> Result<(), String> {
    let within = Duration::from_secs(ready.within_seconds.into());
    let latest = Instant::now() + within;
    let waiting = async {
        match &ready.when {
            When::Passed(seconds) => {
                sleep(Duration::from_secs((*seconds).into())).await;
                Ok(())
            }
            When::Listens(port) => loop {
                let mut text = Vec::new();
                let shell = domain::template::description::Command::Shell(PORTS.to_owned());
                shop.program(&shell, state, "root", Said::Kept(&mut text)).await?;
                if listens(&String::from_utf8_lossy(&text), *port) {
                    return Ok(());
                }
                sleep(PAUSE).await;
            },
            When::Succeeds(command) => loop {
                let mut text = Vec::new();
                let kept = Said::Kept(&mut text);
                match shop.program(command, state, &state.account, kept).await {
                    Ok(()) => return Ok(()),
                    Err(error) if shop.is_lost(&error) => return Err(error),
                    Err(_) => sleep(PAUSE).await,
                }
            },
        }
    };
    match timeout_at(latest, waiting).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let what = match &ready.when {
                When::Passed(seconds) => format!("{seconds}s did not pass"),
                When::Listens(port) => format!("nothing listens on port {port}"),
                When::Succeeds(command) => format!("{} does not succeed", program(command)),
            };
            Err(format!("it was not ready within {}s: {what}", ready.within_seconds))
        }
    }
}

/// Whether something listens on `port`, by the kernel's own list.
fn listens(list: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    list.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        let state = fields.nth(1);
        let is_port = local.is_some_and(|(_, digits)| u16::from_str_radix(digits, 16) == Ok(port));
        is_port && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::listens;

    #[test]
    fn a_port_is_open_when_the_kernel_says_listen() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 0100007F:1F40 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:1F41 0100007F:9999 01 00000000:00000000\n   \
             2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0\n";
        assert!(listens(list, 8000) && listens(list, 80));
        assert!(!listens(list, 8001) && !listens(list, 0x9999) && !listens("", 1));
    }
}
