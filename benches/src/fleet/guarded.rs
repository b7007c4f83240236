//! Breaker and digest shared through Redis compared with the same in memory, and the whole stack compared with one EVALSHA
//! per call.

use std::error::Error;

use phalanx::ResilienceModule;
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::naive::Naive;
use super::policies::{self, CallBatch, NAME, PipelineCaller};
use crate::figures::Bar;
use crate::server::Server;

/// Calls between two yields to the scheduler: so many that its cost does not affect the ratio.
const BATCH_CALLS: u32 = 1_024;

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
    let shared = call_batch(policies::module(server, &name.replace('_', "-"), policies::guarded())?)?;
    let memory = call_batch(ResilienceModule::in_memory().policy(policies::guarded()).build()?)?;
    Ok(Case {
        name,
        compared: Compared::Batches(BATCH_CALLS),
        bar,
        ours: Contender::new("redis", callers, move |_| shared.clone()),
        peers: vec![Contender::new("in_memory", callers, move |_| memory.clone())],
    })
}

fn call_batch(module: ResilienceModule) -> Result<CallBatch, Box<dyn Error>> {
    let caller = PipelineCaller(module.pipeline(NAME, "route")?);
    Ok(CallBatch { module, caller, calls: BATCH_CALLS })
}

/// The whole stack compared with only a limit by EVALSHA: the cost for a service that uses the latter today.
fn stack(runtime: &Runtime, server: &Server, name: &'static str, callers: usize) -> Result<Case, Box<dyn Error>> {
    let module = policies::module(server, "stack", policies::stack())?;
    let caller = PipelineCaller(module.pipeline(NAME, "route")?);
    let naive = Naive::connect(runtime, server, name, 1)?;
    Ok(Case {
        name,
        compared: Compared::Throughput,
        bar: None,
        ours: Contender::new("phalanx", callers, move |_| {
            let _keeps_it_alive = &module;
            caller.clone()
        }),
        peers: vec![Contender::new("evalsha_per_call", callers, move |number| naive.caller(number))],
    })
}
