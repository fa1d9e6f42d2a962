//! The helper's books: what is promised and used, what is wrong, what is logged; and the operations that create, grow and
//! report. If something here is wrong, an answer or a figure is, or room is lost; the boundary between a tenant, the
//! frontend and the host does not depend on it.

mod allocate;
mod cached;
mod conditions;
mod copies;
mod create;
mod delta;
mod filesystem;
mod grow;
mod limits;
pub mod log;
mod owner;
mod release;
mod reserve;
mod room;
mod sharing;
mod status;
pub mod template;
mod watch;

pub use allocate::allocate;
pub use copies::{Begun, Original, make_copy};
pub use create::{create, put_back, unsynced};
pub use delta::delta;
pub use filesystem::{Facts, Filesystem, KUBELET_PROJECTS, Overhead, limits};
pub use grow::{grow_image, set_inodes, set_quota};
pub use limits::{Limits, check_filesystem, check_number_of_targets};
pub use owner::{owner, set_owner};
#[cfg(test)]
pub use release::testing::released;
pub use release::{Deletions, Emptied, Progress, Released};
pub use reserve::{Reserve, permille};
pub use room::Share;
pub use sharing::sharing;
pub use status::{list, list_snapshots, pool_counts, pool_status, usage};
pub use watch::{Missing, is_held_up, watch};
