//! A fault at every system call: the helper is killed there, or the call fails. Nothing is lost, done twice or left
//! over.

mod aftermath;
mod allowed;
mod operation;
mod operations;
mod points;
mod session;
mod start;

use anyhow::Result;
use bulkhead_tests::cases;
use bulkhead_tests::rig::Rig;

use self::allowed::every_call_that_is_listed_is_made;
use self::operations::{Operation, in_background, on_copies, on_devices, on_directories, on_filesystems};
use self::points::ERRORS;
use self::points::Extent::{All, Sample};
use super::filesystems;

cases! {
    every_call_that_is_listed_is_made: Bare + Kernel + Xfs,
    a_kill_at_any_call_of_an_operation_leaves_nothing: Bare + Slow,
    a_kill_at_any_call_for_a_directory_with_a_limit: Bare + Quota + Xfs,
    a_kill_at_any_call_of_the_start_loses_nothing: Bare,
    an_error_at_any_call_of_an_operation_is_answered_and_leaves_nothing: Bare + Slow,
    an_error_at_any_call_for_a_directory_with_a_limit: Bare + Quota + Xfs,
    an_error_at_any_call_of_the_start_loses_nothing: Bare + Slow,
    a_kill_at_any_call_for_a_filesystem: Bare + Slow,
    an_error_at_any_call_for_a_filesystem: Bare + Slow,
    a_kill_at_every_call_for_a_filesystem: Bare + Long,
    an_error_at_every_call_of_the_mounter: Bare + Long,
    an_error_at_every_call_for_a_filesystem_that_is_mounted: Bare + Long,
    an_error_at_every_call_for_a_filesystem_in_use: Bare + Long,
    a_kill_at_any_call_of_a_start_with_a_filesystem: Bare,
    an_error_at_any_call_of_a_start_with_a_filesystem: Bare + Slow,
    a_kill_at_every_call_for_a_directory: Bare + Long + Kernel,
    a_kill_at_every_call_for_a_device: Bare + Long,
    a_kill_at_every_call_for_a_copy: Bare + Long + Xfs,
    an_error_at_every_call_for_a_snapshot: Bare + Long + Xfs,
    an_error_at_every_call_for_a_restored_volume: Bare + Long + Xfs,
    an_error_at_every_call_for_a_copied_volume: Bare + Long + Xfs,
    an_error_at_every_call_for_a_copy_of_a_filesystem: Bare + Long + Xfs,
    an_error_at_any_call_for_a_group: Bare + Long + Xfs,
    a_kill_at_every_call_for_a_group: Bare + Long + Xfs,
    a_kill_at_any_call_for_a_copy: Bare + Xfs + Slow,
    an_error_at_any_call_for_a_copy: Bare + Xfs + Slow,
    a_kill_at_every_call_of_the_start: Bare + Long,
    an_error_at_every_call_for_a_directory: Bare + Long + Kernel,
    an_error_at_every_call_in_the_background: Bare + Long,
    an_error_at_every_call_for_a_device: Bare + Long,
    an_error_at_every_call_for_a_larger_device: Bare + Long,
    an_error_at_every_call_for_the_end_of_a_device: Bare + Long,
    a_full_disk_at_every_call_of_the_start: Bare + Long,
    a_broken_disk_at_every_call_of_the_start: Bare + Long,
    a_lack_of_descriptors_at_every_call_of_the_start: Bare + Long,
    a_lack_of_memory_at_every_call_of_the_start: Bare + Long,
    something_busy_at_every_call_of_the_start: Bare + Long,
    an_interruption_at_every_call_of_the_start: Bare + Long,
    any_other_request_after_an_error_finds_a_directory: Bare,
    any_other_request_after_an_error_finds_a_device: Bare,
    any_other_request_after_an_error_finds_a_filesystem: Bare,
    any_other_request_after_an_error_finds_a_copy: Bare + Xfs,
    every_other_request_after_an_error_finds_a_directory: Bare + Long,
    every_other_request_after_an_error_finds_a_device: Bare + Long,
    every_other_request_after_an_error_finds_a_device_in_use: Bare + Long,
    every_other_request_after_an_error_finds_a_device_at_its_end: Bare + Long,
    every_other_request_after_an_error_finds_a_filesystem: Bare + Long,
    every_other_request_after_an_error_finds_a_filesystem_in_use: Bare + Long,
    every_other_request_after_an_error_finds_a_filesystem_at_its_end: Bare + Long,
    every_other_request_after_an_error_finds_a_copy: Bare + Long + Xfs,
}

fn any_other_request_after_an_error_finds_a_directory(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::directory(), Sample(20))
}

fn any_other_request_after_an_error_finds_a_device(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::device(), Sample(20))
}

fn any_other_request_after_an_error_finds_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::filesystem(), Sample(20))
}

fn any_other_request_after_an_error_finds_a_copy(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::copy(), Sample(20))
}

fn every_other_request_after_an_error_finds_a_directory(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::directory(), All(40))
}

// In one case, these would take longer than a case may.

fn every_other_request_after_an_error_finds_a_device(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::device().only(0..4), All(40))
}

fn every_other_request_after_an_error_finds_a_device_in_use(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::device().only(4..8), All(40))
}

fn every_other_request_after_an_error_finds_a_device_at_its_end(rig: &mut Rig) -> Result<()> {
    aftermath::others(rig, &aftermath::device().only(8..12), All(40))
}

fn every_other_request_after_an_error_finds_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::filesystem().only(0..2), All(40))
}

fn every_other_request_after_an_error_finds_a_filesystem_in_use(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::filesystem().only(2..5), All(40))
}

fn every_other_request_after_an_error_finds_a_filesystem_at_its_end(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::filesystem().only(5..8), All(40))
}

fn every_other_request_after_an_error_finds_a_copy(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    aftermath::others(rig, &aftermath::copy(), All(40))
}

/// Background work comes last: what fails there is retried only after some seconds.
fn all() -> Vec<Operation> {
    [on_directories(), on_devices(), in_background()].concat()
}

fn with_background(operations: Vec<Operation>) -> Vec<Operation> {
    [operations, in_background()].concat()
}

fn a_kill_at_any_call_of_an_operation_leaves_nothing(rig: &mut Rig) -> Result<()> {
    operation::kill(rig, &all(), Sample(35))
}

// Following an operation is slow in a machine, and only directories have calls that are made only where limits are enforced.

fn a_kill_at_any_call_for_a_directory_with_a_limit(rig: &mut Rig) -> Result<()> {
    operation::kill(rig, &on_directories(), Sample(35))
}

fn an_error_at_any_call_for_a_directory_with_a_limit(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &on_directories(), Sample(40))
}

fn a_kill_at_any_call_of_the_start_loses_nothing(rig: &mut Rig) -> Result<()> {
    start::kill(rig, Sample(35))
}

fn an_error_at_any_call_of_an_operation_is_answered_and_leaves_nothing(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &all(), Sample(40))
}

fn an_error_at_any_call_of_the_start_loses_nothing(rig: &mut Rig) -> Result<()> {
    start::error(rig, &ERRORS, Sample(45))
}

fn a_kill_at_every_call_for_a_directory(rig: &mut Rig) -> Result<()> {
    operation::kill(rig, &with_background(on_directories()), All(40))
}

fn a_kill_at_every_call_for_a_device(rig: &mut Rig) -> Result<()> {
    operation::kill(rig, &on_devices(), All(40))
}

fn a_kill_at_any_call_for_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::kill(rig, &on_filesystems(), Sample(20))
}

fn an_error_at_any_call_for_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_filesystems(), Sample(30))
}

fn a_kill_at_every_call_for_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::kill(rig, &on_filesystems(), All(40))
}

// In one case, these would take longer than a case may.

fn an_error_at_every_call_of_the_mounter(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_filesystems()[..2], All(40))
}

fn an_error_at_every_call_for_a_filesystem_that_is_mounted(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_filesystems()[2..5], All(40))
}

fn an_error_at_every_call_for_a_filesystem_in_use(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_filesystems()[5..], All(40))
}

fn a_kill_at_any_call_for_a_copy(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::kill(rig, &on_copies(), Sample(20))
}

fn an_error_at_any_call_for_a_copy(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies(), Sample(30))
}

fn a_kill_at_every_call_for_a_copy(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::kill(rig, &on_copies(), All(40))
}

fn an_error_at_every_call_for_a_snapshot(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies()[..1], All(40))
}

fn an_error_at_every_call_for_a_restored_volume(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies()[1..2], All(40))
}

fn an_error_at_every_call_for_a_copied_volume(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies()[2..7], All(40))
}

fn an_error_at_every_call_for_a_copy_of_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies()[7..9], All(40))
}

fn an_error_at_any_call_for_a_group(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::error(rig, &on_copies()[9..], Sample(100))
}

fn a_kill_at_every_call_for_a_group(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operation::kill(rig, &on_copies()[9..], All(40))
}

fn a_kill_at_any_call_of_a_start_with_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    start::kill(rig, Sample(20))
}

fn an_error_at_any_call_of_a_start_with_a_filesystem(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    start::error(rig, &ERRORS, Sample(20))
}

fn a_kill_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::kill(rig, All(40))
}

fn an_error_at_every_call_for_a_directory(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &on_directories(), All(40))
}

fn an_error_at_every_call_in_the_background(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &in_background(), All(40))
}

// In one case, these three would take longer than a case may.

fn an_error_at_every_call_for_a_device(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &on_devices()[..4], All(40))
}

fn an_error_at_every_call_for_a_larger_device(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &on_devices()[4..8], All(40))
}

fn an_error_at_every_call_for_the_end_of_a_device(rig: &mut Rig) -> Result<()> {
    operation::error(rig, &on_devices()[8..], All(40))
}

// Together these cover all errors: in one case they would take longer than a case may.

fn a_full_disk_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["ENOSPC", "EROFS"], All(40))
}

fn a_broken_disk_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["EIO"], All(40))
}

fn a_lack_of_descriptors_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["EMFILE"], All(40))
}

fn a_lack_of_memory_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["ENOMEM"], All(40))
}

fn something_busy_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["EBUSY"], All(40))
}

fn an_interruption_at_every_call_of_the_start(rig: &mut Rig) -> Result<()> {
    start::error(rig, &["EINTR"], All(40))
}
