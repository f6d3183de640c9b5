//! Numbers and what is said about them.

use std::time::Duration;

use serde::Serialize;

/// Milliseconds, in the order in which they were measured.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, taken: Duration) {
        self.push_millis(taken.as_secs_f64() * 1000.0);
    }

    pub(super) fn push_millis(&mut self, millis: f64) {
        self.0.push(millis);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(super) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    pub(super) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// The smallest sample that at least this part of all samples does not
    /// exceed; zero if there is none.
    fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let rank = (1..=count).find(|rank| *rank as f64 >= part * count as f64).unwrap_or(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<T: IntoIterator<Item = f64>>(samples: T) -> Self {
        Self(samples.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let samples: Samples = (1..=20).rev().map(f64::from).collect();
        assert_eq!((samples.median(), samples.p95(), samples.max()), (10.0, 19.0, 20.0));
        assert_eq!(Samples::from_iter([7.0]).p95(), 7.0);
        assert_eq!(Samples::default().median(), 0.0);
    }
}
