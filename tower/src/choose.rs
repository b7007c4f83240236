//! Which pipeline a request goes through: one that is kept, or one that is found for each request.

use std::borrow::Cow;
use std::ops::Deref;

use phalanx::{Pipeline, Rejection, ResilienceModule};

/// Finds the pipeline of a request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose a pipeline for `{R}`",
    note = "the function given to `route_by` or `ResilienceLayer::by` takes another type of request than the service"
)]
pub trait Choose<R>: Send + Sync + 'static {
    /// The pipeline of this request.
    ///
    /// # Errors
    /// `unknown_policy` or `route_too_long`.
    fn choose(&self, module: &ResilienceModule, request: &R) -> Result<Chosen<'_>, Rejection>;
}

/// A pipeline that was kept or found.
#[derive(Debug)]
pub enum Chosen<'a> {
    /// Resolved when the layer was made.
    Kept(&'a Pipeline),
    /// Resolved for this request.
    Found(Pipeline),
}

impl Deref for Chosen<'_> {
    type Target = Pipeline;

    #[inline]
    fn deref(&self) -> &Pipeline {
        match self {
            Self::Kept(pipeline) => pipeline,
            Self::Found(pipeline) => pipeline,
        }
    }
}

/// One policy on one route for all requests: resolved once and kept.
#[derive(Clone, Debug)]
pub struct Fixed(pub(crate) Pipeline);

impl<R> Choose<R> for Fixed {
    #[inline]
    fn choose(&self, _: &ResilienceModule, _: &R) -> Result<Chosen<'_>, Rejection> {
        Ok(Chosen::Kept(&self.0))
    }
}

/// One policy, on a route that the request tells.
#[derive(Clone, Debug)]
pub struct ByRoute<F> {
    pub(crate) policy: String,
    pub(crate) route: F,
}

impl<R, F> Choose<R> for ByRoute<F>
where
    F: Fn(&R) -> Cow<'_, str> + Send + Sync + 'static,
{
    fn choose(&self, module: &ResilienceModule, request: &R) -> Result<Chosen<'_>, Rejection> {
        let route = (self.route)(request);
        module.pipeline(&self.policy, &*route).map(Chosen::Found)
    }
}

/// Policy and route by a function of the request.
#[derive(Clone, Debug)]
pub struct ByRequest<F>(pub(crate) F);

impl<R, F> Choose<R> for ByRequest<F>
where
    F: Fn(&ResilienceModule, &R) -> Result<Pipeline, Rejection> + Send + Sync + 'static,
{
    fn choose(&self, module: &ResilienceModule, request: &R) -> Result<Chosen<'_>, Rejection> {
        (self.0)(module, request).map(Chosen::Found)
    }
}
