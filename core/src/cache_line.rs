//! A value on a cache line of its own, so that writing it does not slow down readers of its neighbours.

/// One cache line on every processor we know of; where lines come in pairs, the neighbour is only ever prefetched.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CacheLine<T>(pub T);
