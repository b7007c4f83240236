//! Three limits in one decision, compared with one: of the policy, of the route, and of one of eight tenants.

use std::error::Error;

use phalanx::policy::{LimitKey, LimitSpec};
use phalanx::{Pipeline, Policy, ResilienceModule};
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::policies;
use crate::contender::Caller;
use crate::figures::Bar;
use crate::operation::ready;
use crate::server::Server;
use crate::settings::UNREACHABLE_RATE;

const CALLERS: usize = 1_024;
const TENANTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(crate) fn cases(_: &Runtime, server: &Server, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Case>, Box<dyn Error>> {
    let name = "several_limits_1024";
    if !wanted(name) {
        return Ok(Vec::new());
    }
    let limit = |key| LimitSpec::per_second(UNREACHABLE_RATE.into()).key(key);
    let three = Policy::named(policies::NAME)
        .limit("all", limit(LimitKey::Policy))
        .limit("route", limit(LimitKey::Route))
        .limit("tenant", limit(LimitKey::tag("tenant")));
    let one = Policy::named(policies::NAME).rate_limit(policies::limit());
    let contender = |label, environment: &str, policy| -> Result<Contender, Box<dyn Error>> {
        let module = policies::module(server, environment, policy)?;
        let pipeline = module.pipeline(policies::NAME, "eu")?;
        let caller = move |number: usize| TaggedCaller {
            _module: module.clone(),
            pipeline: pipeline.clone(),
            tenant: TENANTS[number * TENANTS.len() / CALLERS],
        };
        Ok(Contender::new(label, CALLERS, caller))
    };
    let ours = contender("three_limits", "several-three", three)?;
    let peers = vec![contender("one_limit", "several-one", one)?];
    Ok(vec![Case { name, compared: Compared::Throughput, bar: Some(Bar::AtLeast(0.6)), ours, peers }])
}

/// Calls with a tag, through a kept pipeline.
struct TaggedCaller {
    _module: ResilienceModule,
    pipeline: Pipeline,
    tenant: &'static str,
}

impl Caller for TaggedCaller {
    async fn call(&mut self) -> bool {
        self.pipeline.call().tag("tenant", self.tenant).run(ready).await.is_ok()
    }
}
