//! A replica that starts with a singleton step and is ready after it.

use std::io;
use std::time::Duration;

use phalanx::lifecycle::{DeploymentProfile, Runtime, SingletonSpec, Step, singleton};
use tokio::time::sleep;

use super::{Fleet, Said, module, say};

pub(super) async fn start(fleet: &Fleet, time: Duration, ttl: Duration, wait: Duration) {
    let module = module(fleet);
    let step = Step::new("indexes").mutates_shared_state().on_start_with(move |scene| async move {
        let fence = scene.fence().map_err(io::Error::other)?;
        say(Said::Began(fence.expect("the fence of a singleton")));
        sleep(time).await;
        say(Said::Done);
        io::Result::Ok(())
    });
    let spec = SingletonSpec::version("1").ttl(ttl).wait(wait);
    let runtime = Runtime::builder()
        .profile(DeploymentProfile::Fleet)
        .step(singleton(step.timeout(4 * time + wait), module.locks(), spec))
        .module(module)
        .build()
        .expect("a runtime in order");
    match runtime.start().await {
        Ok(()) => say(Said::Ready),
        Err(error) => say(Said::Failed(error.to_string())),
    }
    std::future::pending::<()>().await;
}
