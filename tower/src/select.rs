//! Which pipeline a request goes through: one resolved with the layer, or one resolved for each request.

use std::borrow::Cow;
use std::ops::Deref;

use phalanx::{Pipeline, Rejection, ResilienceModule};

/// Selects the pipeline of a request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select a pipeline for `{R}`",
    note = "the function given to `route_by` or `ResilienceLayer::by_request` takes another request type than the service"
)]
pub trait SelectPipeline<R>: Send + Sync + 'static {
    /// Returns the pipeline of this request.
    ///
    /// # Errors
    /// `unknown_policy` or `route_too_long`.
    fn select(&self, module: &ResilienceModule, request: &R) -> Result<SelectedPipeline<'_>, Rejection>;
}

/// A pipeline, borrowed from the layer or resolved for one request.
#[derive(Debug)]
pub enum SelectedPipeline<'a> {
    /// Resolved when the layer was made.
    Borrowed(&'a Pipeline),
    /// Resolved for this request.
    Owned(Pipeline),
}

impl Deref for SelectedPipeline<'_> {
    type Target = Pipeline;

    #[inline]
    fn deref(&self) -> &Pipeline {
        match self {
            Self::Borrowed(pipeline) => pipeline,
            Self::Owned(pipeline) => pipeline,
        }
    }
}

/// One policy on one route for all requests, resolved once.
#[derive(Clone, Debug)]
pub struct Fixed(pub(crate) Pipeline);

impl<R> SelectPipeline<R> for Fixed {
    #[inline]
    fn select(&self, _: &ResilienceModule, _: &R) -> Result<SelectedPipeline<'_>, Rejection> {
        Ok(SelectedPipeline::Borrowed(&self.0))
    }
}

/// One policy, on a route computed from the request.
#[derive(Clone, Debug)]
pub struct ByRoute<F> {
    pub(crate) policy: String,
    pub(crate) route: F,
}

impl<R, F> SelectPipeline<R> for ByRoute<F>
where
    F: Fn(&R) -> Cow<'_, str> + Send + Sync + 'static,
{
    fn select(&self, module: &ResilienceModule, request: &R) -> Result<SelectedPipeline<'_>, Rejection> {
        let route = (self.route)(request);
        module.pipeline(&self.policy, &*route).map(SelectedPipeline::Owned)
    }
}

/// Policy and route, both computed from the request.
#[derive(Clone, Debug)]
pub struct ByRequest<F>(pub(crate) F);

impl<R, F> SelectPipeline<R> for ByRequest<F>
where
    F: Fn(&ResilienceModule, &R) -> Result<Pipeline, Rejection> + Send + Sync + 'static,
{
    fn select(&self, module: &ResilienceModule, request: &R) -> Result<SelectedPipeline<'_>, Rejection> {
        (self.0)(module, request).map(SelectedPipeline::Owned)
    }
}
