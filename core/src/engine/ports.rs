//! Which policies guard a whole port, so that no change lets such a policy repeat what must not be repeated.
//!
//! After an `infrastructure` failure it is unknown whether the call took effect, so a port whose methods are not named must
//! not be retried on it. A port is bound when its policy is checked for the first time, and stays bound: the code that
//! calls it stays too. A change locks the ports from its validation until all routes are recompiled, and a port is bound
//! under the same lock, so that neither can miss the other.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::policy::Policy;
use crate::policy::validate::Mistake;

/// More ports than any program has. Past this number a port is only checked with every call.
const MAX_PORTS: usize = 10_000;

/// The names of the policies that guard a port.
pub(crate) type PolicyNames = HashSet<String>;

/// The ports of an engine. Clones are the same ports.
#[derive(Clone, Default)]
pub(crate) struct Ports(Arc<Mutex<PolicyNames>>);

impl Ports {
    /// Locks the ports against binding, for the time of a change.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PolicyNames> {
        self.0.lock()
    }
}

/// Whether the calls of one route come through a port.
pub(crate) struct PortBinding {
    ports: Ports,
    bound: AtomicBool,
}

impl PortBinding {
    pub(crate) const fn new(ports: Ports) -> Self {
        Self { ports, bound: AtomicBool::new(false) }
    }

    /// Binds the port to this policy, if `check` passes. No change of the policies happens meanwhile.
    #[inline]
    pub(crate) fn bind<E>(&self, policy: &str, check: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.bound.load(Ordering::Relaxed) { Ok(()) } else { self.bind_now(policy, check) }
    }

    #[cold]
    fn bind_now<E>(&self, policy: &str, check: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut ports = self.ports.lock();
        check()?;
        if ports.len() < MAX_PORTS {
            ports.insert(policy.to_owned());
        }
        self.bound.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the mistake of a policy that guards a port and would retry the whole of it. `name` is the policy's name in the
/// configuration: `default` for a port that has no policy of its own.
pub(super) fn blanket_retry(name: &str, policy: &Policy) -> Option<Mistake> {
    const REASON: &str = "must not contain `infrastructure`: a port in use would be retried as a whole, its writes too. \
                          Name the methods that may be repeated, or state `allow_blanket_retry`";
    let path = || format!("policies.{}.retry.retry_on", name.escape_debug());
    policy.is_blanket_retry().then(|| Mistake::new(path(), REASON))
}
