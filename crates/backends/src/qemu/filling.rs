//! Memory that is filled while the machine that maps it starts.
//!
//! QEMU maps its memory long before it looks at it, so reading it from disk costs
//! a start nothing as long as it is done when QEMU is ready. What must hold: the
//! device state is given to no machine before the memory was filled, found to be
//! whole and sealed ([`Filling::done`]).

use std::io;

use tokio::sync::watch;

/// A piece of work that fills memory, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Filling {
    result: watch::Receiver<Option<Result<(), String>>>,
}

/// The memory is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotFilled(String);

impl Filling {
    /// Begins `work`, which runs to its end.
    pub(super) fn begin(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        let (sender, result) = watch::channel(None);
        tokio::task::spawn_blocking(move || {
            let result = work().map_err(|error| error.to_string());
            sender.send_replace(Some(result));
        });
        Self { result }
    }

    /// Waits until the memory is whole and nobody can change it.
    pub(super) async fn done(&self) -> Result<(), NotFilled> {
        let mut result = self.result.clone();
        let Ok(result) = result.wait_for(Option::is_some).await else {
            return Err(NotFilled("the work was given up".to_owned()));
        };
        result.clone().unwrap_or(Ok(())).map_err(NotFilled)
    }

    /// Whether it is known that it will never be whole.
    pub(super) fn has_failed(&self) -> bool {
        match &*self.result.borrow() {
            Some(result) => result.is_err(),
            None => self.result.has_changed().is_err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_goes_on_before_it_is_done() {
        let (go, wait) = std::sync::mpsc::channel();
        let filling = Filling::begin(move || wait.recv().map_err(io::Error::other));
        let mut done = std::pin::pin!(filling.done());
        let moment = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(moment, &mut done).await.is_err());
        assert!(!filling.has_failed());
        go.send(()).unwrap();
        assert_eq!(done.await, Ok(()));
        assert_eq!(filling.done().await, Ok(()));
        assert!(!filling.has_failed());
    }

    #[tokio::test]
    async fn everybody_hears_that_it_failed() {
        let filling = Filling::begin(|| Err(io::Error::other("damaged")));
        for _ in 0..2 {
            assert_eq!(filling.done().await, Err(NotFilled("damaged".to_owned())));
        }
        assert!(filling.has_failed());
    }
}
