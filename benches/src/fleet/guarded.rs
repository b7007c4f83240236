//! Breaker and digest shared through Redis beside the same in memory, and the whole stack beside a naive limit.

use std::error::Error;

use phalanx::ResilienceModule;
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::figures::Bar;
use super::naive::Naive;
use super::policies::{self, NAME, Stretch, Through};
use super::server::Server;

/// Calls between two turns of the scheduler: so many that its price does not water down the ratio.
const STRETCH: u32 = 1_024;

pub(crate) fn cases(
    runtime: &Runtime,
    server: &Server,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Case>, Box<dyn Error>> {
    let _inside = runtime.enter();
    let mut cases = Vec::new();
    for (name, callers, bar) in [("shared_vs_memory", 1, Some(Bar::AtMost(1.3))), ("shared_vs_memory_64", 64, None)] {
        if wanted(name) {
            cases.push(shared_vs_memory(server, name, callers, bar)?);
        }
    }
    if wanted("stack_1024") {
        cases.push(stack(runtime, server, "stack_1024", 1_024)?);
    }
    Ok(cases)
}

fn shared_vs_memory(
    server: &Server,
    name: &'static str,
    callers: usize,
    bar: Option<Bar>,
) -> Result<Case, Box<dyn Error>> {
    let shared = stretch(policies::module(server, &name.replace('_', "-"), policies::guarded())?)?;
    let memory = stretch(ResilienceModule::in_memory().policy(policies::guarded()).build()?)?;
    Ok(Case {
        name,
        compared: Compared::Stretches(STRETCH),
        bar,
        ours: Contender::new("redis", callers, move |_| shared.clone()),
        peers: vec![Contender::new("in_memory", callers, move |_| memory.clone())],
    })
}

fn stretch(module: ResilienceModule) -> Result<Stretch, Box<dyn Error>> {
    let through = Through(module.pipeline(NAME, "route")?);
    Ok(Stretch { module, through, calls: STRETCH })
}

/// Everything on, beside one limit alone: what the whole costs a service that pays for the naive limit today.
fn stack(runtime: &Runtime, server: &Server, name: &'static str, callers: usize) -> Result<Case, Box<dyn Error>> {
    let module = policies::module(server, "stack", policies::stack())?;
    let through = Through(module.pipeline(NAME, "route")?);
    let naive = Naive::connect(runtime, server, name, 1)?;
    Ok(Case {
        name,
        compared: Compared::Throughput,
        bar: None,
        ours: Contender::new("phalanx", callers, move |_| {
            let _keeps_it_alive = &module;
            through.clone()
        }),
        peers: vec![Contender::new("evalsha_per_call", callers, move |number| naive.caller(number))],
    })
}
