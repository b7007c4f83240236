//! The Lua scripts with which Phalanx keeps fleet state in Redis, embedded. The scripts themselves arrive with the
//! Redis store; until then this crate only holds their place in the workspace.
