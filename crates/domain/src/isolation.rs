//! How strongly a backend separates a sandbox from its host.

use serde::{Deserialize, Serialize};

/// The isolation class of a backend, from weakest to strongest (U2).
///
/// A profile states the least it accepts and a backend states what it gives;
/// the order of the variants is the comparison. Nothing lowers it silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationClass {
    /// A process of the host with fewer rights. For unit tests only.
    Process,
    /// Own namespaces on a kernel that is shared.
    Container,
    /// A virtual machine with a kernel of its own.
    Microvm,
}

impl IsolationClass {
    /// Whether this class is at least `least`.
    pub fn satisfies(self, least: Self) -> bool {
        self >= least
    }
}

#[cfg(test)]
mod tests {
    use super::IsolationClass::*;

    /// U2
    #[test]
    fn a_container_never_satisfies_a_demand_for_a_machine() {
        assert!(!Container.satisfies(Microvm));
        assert!(Microvm.satisfies(Container));
        assert!(Container > Process);
    }
}
