//! The Redis store of Phalanx: breakers, buckets and digests shared by all replicas. It arrives with the fleet; until
//! then this crate only holds its place in the workspace.
