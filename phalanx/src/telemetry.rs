//! What a module says about itself to the tools people have: spans and log lines through `tracing`, and the trace's context
//! on requests from one service to the next.
//!
//! All of it is asked for: a module that is not [`traced`](crate::ModuleBuilder::traced) says nothing and pays nothing. The
//! spans are made in `phalanx_core::pipeline`, because operations run inside them; the rest are observers, here.

#[cfg(feature = "tracing")]
mod log;
#[cfg(feature = "trace-context")]
mod trace_context;

#[cfg(feature = "tracing")]
pub(crate) use self::log::Log;
#[cfg(feature = "trace-context")]
pub use self::trace_context::{adopt, extract, inject};
