//! The table, and what has to hold.

use std::time::Duration;

use crate::gateway::{FREE, PRO, TENANTS, TOGETHER};
use crate::load::{AllCounts, Counts, LATENCY_MILLIS, SHARES};
use crate::printout::{Printout, millis, percent, row};

pub(crate) fn of(counts: &AllCounts, over: &str, lasted: Duration, seed: u64) -> Printout {
    let mut printout = Printout::new("tokens per minute for six tenants");
    printout.text(format_args!(
        "Three replicas ({over}) get {} of ten requests, for {} s, seed {seed}.\n\
         A request pays its prompt and the longest answer. After {} to {} its true cost is settled: the rest\n\
         comes back, less what the bucket has refilled meanwhile.",
        SHARES.map(|share| share.to_string()).join(", "),
        lasted.as_secs(),
        millis(Duration::from_millis(LATENCY_MILLIS.0)),
        millis(Duration::from_millis(LATENCY_MILLIS.1)),
    ));
    printout.blank();
    table(&mut printout, counts, lasted);
    expectations(&mut printout, counts, lasted);
    printout
}

fn table(printout: &mut Printout, counts: &AllCounts, lasted: Duration) {
    let mut rows = vec![
        row(["", "", "tokens", "", "rejected by", "", "tokens", "", "of its"]),
        row(["tenant", "plan", "allowed", "requests", "tenant", "all", "estimated", "used", "allowance"]),
    ];
    let mut sum = Counts::default();
    for (tenant, counts) in TENANTS.iter().zip(counts) {
        sum.add(counts);
        rows.push(cells(tenant.name, tenant.plan.name, tenant.plan.allows(lasted), counts));
    }
    rows.push(cells("together", "", TOGETHER.allows(lasted), &sum));
    printout.table(&rows);
}

fn cells(name: &str, plan: &str, allowed: u64, counts: &Counts) -> Vec<String> {
    let Counts { requests, over_tenant, over_all, estimated, tokens, .. } = counts;
    let mut cells = row([name, plan]);
    cells.extend([allowed, *requests].map(|number| number.to_string()));
    cells.extend([*over_tenant, *over_all].map(|rejected| percent(rejected, *requests)));
    cells.extend([*estimated, *tokens].map(|number| number.to_string()));
    cells.push(percent(*tokens, allowed));
    cells
}

fn expectations(printout: &mut Printout, counts: &AllCounts, lasted: Duration) {
    let each = || TENANTS.iter().zip(counts);
    let within = each().all(|(tenant, counts)| counts.tokens <= tenant.plan.allows(lasted));
    printout.expect(within, "no tenant used more than its burst and its tokens per minute");
    let used: u64 = counts.iter().map(|counts| counts.tokens).sum();
    printout.expect(used <= TOGETHER.allows(lasted), "nor did all together");
    let modest = each().filter(|(tenant, _)| tenant.wants_per_minute < tenant.plan.per_minute);
    let rejected: u64 = modest.map(|(_, counts)| counts.over_tenant).sum();
    printout.expect(rejected == 0, "a tenant that wants less than it may use was never over its limit");
    for plan in [FREE, PRO] {
        let busy = each().filter(|(tenant, _)| tenant.plan == plan && tenant.wants_per_minute > plan.per_minute);
        let used: Vec<f64> = busy.map(|(_, counts)| counts.tokens as f64 / plan.allows(lasted) as f64).collect();
        let least = used.iter().copied().fold(f64::INFINITY, f64::min);
        let (fairness, name) = (fairness(&used), plan.name);
        printout.expect(
            least > 0.75 && fairness > 0.98,
            format_args!(
                "{name}: tenants that want more got at least {:.0} % of their allowance, fairness {fairness:.3}",
                100.0 * least
            ),
        );
    }
    let estimated: u64 = counts.iter().map(|counts| counts.estimated).sum();
    printout.expect(
        estimated > used,
        format_args!("answers took {} less than they had paid", percent(estimated - used, estimated)),
    );
}

/// Jain's index: 1 if all got the same.
fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
