//! The gateway: its limits, in tokens, and its tenants.

use std::time::Duration;

use phalanx::Policy;
use phalanx::policy::{LimitKey, LimitSpec, RateOverride};

/// The name of the policy, and its only route.
pub(crate) const POLICY: &str = "model";
pub(crate) const ROUTE: &str = "chat";

/// The limit of each tenant, and of all together.
pub(crate) const TENANT: &str = "tenant";
pub(crate) const ALL: &str = "all";

const MINUTE: Duration = Duration::from_secs(60);

/// Tokens a minute of a plan, and at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) per_minute: u64,
    pub(crate) burst: u64,
}

pub(crate) const FREE: Plan = Plan { name: "free", per_minute: 12_000, burst: 2_000 };
pub(crate) const PRO: Plan = Plan { name: "pro", per_minute: 60_000, burst: 10_000 };
pub(crate) const TOGETHER: Plan = Plan { name: "all", per_minute: 220_000, burst: 20_000 };

impl Plan {
    /// Returns the most tokens that it allows in this time.
    pub(crate) fn allows(&self, time: Duration) -> u64 {
        self.burst + (self.per_minute as f64 * time.as_secs_f64() / 60.0) as u64
    }
}

/// A customer, with the tokens a minute that it would use if nothing limited it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) plan: Plan,
    pub(crate) wants_per_minute: u64,
}

pub(crate) const TENANTS: [Tenant; 6] = [
    Tenant { name: "acme", plan: PRO, wants_per_minute: 120_000 },
    Tenant { name: "globex", plan: PRO, wants_per_minute: 36_000 },
    Tenant { name: "hobby-1", plan: FREE, wants_per_minute: 120_000 },
    Tenant { name: "hobby-2", plan: FREE, wants_per_minute: 24_000 },
    Tenant { name: "hobby-3", plan: FREE, wants_per_minute: 24_000 },
    Tenant { name: "hobby-4", plan: FREE, wants_per_minute: 24_000 },
];

/// Every request takes its tokens from its tenant's limit and from that of all, or from neither.
pub(crate) fn policy() -> Policy {
    let all = LimitSpec::new(TOGETHER.per_minute, MINUTE).burst(TOGETHER.burst).key(LimitKey::Policy);
    let tenant = LimitSpec::new(FREE.per_minute, MINUTE).burst(FREE.burst).key(LimitKey::tag("tenant"));
    let pro = RateOverride::permits(PRO.per_minute).burst(PRO.burst);
    let paying = TENANTS.iter().filter(|tenant| tenant.plan == PRO);
    let tenant = paying.fold(tenant, |limit, tenant| limit.rate_for(tenant.name, pro));
    Policy::named(POLICY).limit(ALL, all).limit(TENANT, tenant)
}
