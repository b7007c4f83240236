//! The singleton role: starts with a singleton step and reports when it is ready.

use std::io;
use std::time::Duration;

use phalanx::lifecycle::{DeploymentProfile, Runtime, SingletonSpec, Step, singleton};
use tokio::time::sleep;

use super::{Fleet, ProcessEvent, module, report};

pub(super) async fn start(fleet: &Fleet, time: Duration, ttl: Duration, wait: Duration) {
    let module = module(fleet);
    let step = Step::new("indexes").mutates_shared_state().on_start_with(move |context| async move {
        let fence = context.fence().map_err(io::Error::other)?;
        report(ProcessEvent::StepStarted(fence.expect("a singleton step has a fence")));
        sleep(time).await;
        report(ProcessEvent::StepDone);
        io::Result::Ok(())
    });
    let spec = SingletonSpec::version("1").ttl(ttl).wait(wait);
    let runtime = Runtime::builder()
        .profile(DeploymentProfile::Fleet)
        .step(singleton(step.timeout(4 * time + wait), module.locks(), spec))
        .module(module)
        .build()
        .expect("a valid runtime");
    match runtime.start().await {
        Ok(()) => report(ProcessEvent::Ready),
        Err(error) => report(ProcessEvent::Failed(error.to_string())),
    }
    std::future::pending::<()>().await;
}
