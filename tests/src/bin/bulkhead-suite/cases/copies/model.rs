//! Random sequences of what can be done with volumes and their copies, in a small pool without overcommitment. Whatever was
//! done, each volume can be written to the last block afterwards, and nothing stays promised once all are deleted.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request, Response, VolumeSpec};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pace::patience;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;

cases! {
    every_promise_of_a_random_pool_is_kept: Bare + Xfs + Slow,
    every_promise_of_many_random_pools_is_kept: Bare + Xfs + Long,
}

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// What the model knows of a pool.
struct Model<'a> {
    rig: &'a mut Rig,
    helper: HelperClient,
    random: Random,
    /// Volumes by id, with their sizes.
    volumes: BTreeMap<String, VolumeSpec>,
    /// Snapshots by id, with what they refer to and what they are of.
    snapshots: BTreeMap<String, (u64, VolumeSpec)>,
    made: usize,
    log: Vec<String>,
}

fn every_promise_of_a_random_pool_is_kept(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    run(rig, 1, 60)
}

fn every_promise_of_many_random_pools_is_kept(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    (2..22).try_for_each(|seed| run(rig, seed, 80))
}

fn run(rig: &mut Rig, seed: u64, steps: usize) -> Result<()> {
    let helper = rig.helper()?;
    let (volumes, snapshots) = (BTreeMap::new(), BTreeMap::new());
    let mut model = Model { rig, helper, random: Random::new(seed), volumes, snapshots, made: 0, log: Vec::new() };
    let mut done = || {
        for _ in 0..steps {
            model.step()?;
            model.check_promised()?;
        }
        model.fill()?;
        model.rewrite_all()?;
        model.end()
    };
    let ended = done();
    ended.with_context(|| format!("seed {seed}, after {:#?}", model.log))
}

impl Model<'_> {
    fn step(&mut self) -> Result<()> {
        self.made += 1;
        let id = format!("v{:03}", self.made);
        match self.random.below(16) {
            0..=2 => {
                let spec = {
                    let size = 8 + self.random_below(40);
                    self.spec(size)
                };
                if self.try_to(&create(&id, spec))?.is_some() {
                    self.publish(&id, spec)?;
                }
            }
            3..=6 => {
                let Some((of, spec)) = self.any_volume() else { return Ok(()) };
                if let Some(Reply::Snapshot(snapshot)) = self.try_to(&create_snapshot(&of, &id))? {
                    self.snapshots.insert(id, (snapshot.allocated, spec));
                }
            }
            7 | 8 => {
                let from = self.random.below(2);
                let source = if from == 0 { self.any_volume() } else { self.any_snapshot() };
                let Some((source, from)) = source else { return Ok(()) };
                let mut spec = self.spec(0);
                spec.size = bytes(from.size.get() + self.random_below(3) * 4 * MIB);
                if self.try_to(&create_from(&id, spec, &source))?.is_some() {
                    self.publish(&id, spec)?;
                }
            }
            9..=11 => {
                let Some((id, spec)) = self.any_volume() else { return Ok(()) };
                self.log.push(format!("write to {id}"));
                let (step, first) = (1 + self.random_below(3), self.random_below(2));
                let most = spec.size.get() / BLOCK;
                let end = most - self.random_below(most as usize / 2);
                self.write(&id, (first..end).step_by(step as usize))?;
            }
            12 => {
                let Some((id, _)) = self.any_volume() else { return Ok(()) };
                self.end_volume(&id)?;
            }
            13 => {
                let Some((id, _)) = self.any_snapshot() else { return Ok(()) };
                self.log.push(format!("delete {id}"));
                self.helper.ask(&delete_snapshot(&id))?;
                self.snapshots.remove(&id);
            }
            14 => {
                let Some((id, spec)) = self.any_volume() else { return Ok(()) };
                let size = bytes(spec.size.get() + 4 * MIB);
                if self.try_to(&Request::GrowImage { volume: volume(&id), size })?.is_some() {
                    self.helper.ask(&Request::LoopResize { volume: volume(&id) })?;
                    self.volumes.insert(id, VolumeSpec { size, ..spec });
                }
            }
            _ => {
                self.log.push("restart".to_owned());
                let before = self.promised()?;
                self.rig.restart_helper()?;
                self.helper = self.rig.helper()?;
                let after = self.promised()?;
                ensure!(before == after, "{before} bytes were promised, and {after} after a restart");
            }
        }
        Ok(())
    }

    fn random_below(&mut self, bound: usize) -> u64 {
        self.random.below(bound) as u64
    }

    /// An image of so many MiB, sparse or not.
    fn spec(&mut self, mebibytes: u64) -> VolumeSpec {
        let size = mebibytes.max(1) * MIB;
        if self.random.below(3) == 0 { sparse_spec(size) } else { image_spec(size) }
    }

    fn any_volume(&mut self) -> Option<(String, VolumeSpec)> {
        let at = self.random.below(self.volumes.len().max(1));
        self.volumes.iter().nth(at).map(|(id, spec)| (id.clone(), *spec))
    }

    fn any_snapshot(&mut self) -> Option<(String, VolumeSpec)> {
        let at = self.random.below(self.snapshots.len().max(1));
        self.snapshots.iter().nth(at).map(|(id, (_, spec))| (id.clone(), *spec))
    }

    /// Asks for something that may be refused for lack of room, and for no other reason.
    fn try_to(&mut self, request: &Request) -> Result<Option<Reply>> {
        self.log.push(format!("{request:?}"));
        let response: Response = self.helper.request(request)?;
        match response {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if matches!(error.kind, ErrorKind::NoRoom { .. }) => {
                self.log.push("no room".to_owned());
                Ok(None)
            }
            Err(error) => bail!("{request:?}: {:?}: {error}", error.kind),
        }
    }

    fn publish(&mut self, id: &str, spec: VolumeSpec) -> Result<()> {
        self.helper.ask(&attach(id))?;
        self.helper.ask(&make_device(id, id))?;
        self.volumes.insert(id.to_owned(), spec);
        Ok(())
    }

    fn end_volume(&mut self, id: &str) -> Result<()> {
        self.log.push(format!("delete {id}"));
        for request in [remove_device(id, id), detach(id), delete(id)] {
            self.helper.ask_patiently(&request)?;
        }
        self.volumes.remove(id);
        Ok(())
    }

    /// Writes blocks of a device: the promise is that this succeeds.
    fn write(&mut self, id: &str, blocks: impl Iterator<Item = u64>) -> Result<()> {
        let device = File::options().write(true).open(self.rig.target(id))?;
        let byte = [u8::try_from(1 + self.random.below(250))?; BLOCK as usize];
        for (number, block) in blocks.enumerate() {
            device.write_all_at(&byte, block * BLOCK)?;
            if number % 2048 == 2047 {
                device.sync_data().with_context(|| format!("write to {id}"))?;
            }
        }
        device.sync_all().with_context(|| format!("write to {id}"))
    }

    fn promised(&self) -> Result<u64> {
        // What is deleted counts until it is empty.
        wait::until(patience(Duration::from_secs(20)), || {
            ensure!(self.helper.pool_status("default")?.emptying == 0, "volumes are being emptied");
            Ok(())
        })?;
        Ok(self.helper.pool_status("default")?.promised)
    }

    fn check_promised(&self) -> Result<()> {
        let volumes: u64 = self.volumes.values().map(|spec| spec.size.get()).sum();
        let snapshots: u64 = self.snapshots.values().map(|(allocated, _)| allocated + allocated / 100).sum();
        let promised = self.promised()?;
        ensure!(promised >= volumes + snapshots, "{promised} bytes are promised, not {volumes} and {snapshots}");
        Ok(())
    }

    /// Promises all that is left.
    fn fill(&mut self) -> Result<()> {
        for number in 0..8 {
            self.promised()?;
            std::thread::sleep(Duration::from_millis(1100));
            let rest = self.helper.pool_status("default")?.largest_volume;
            if rest < 64 << 10 {
                break;
            }
            let (id, spec) = (format!("z{number}"), image_spec(rest));
            if self.try_to(&create(&id, spec))?.is_some() {
                self.publish(&id, spec)?;
            }
        }
        Ok(())
    }

    fn rewrite_all(&mut self) -> Result<()> {
        for first in [0, 1, 0] {
            for (id, spec) in self.volumes.clone() {
                self.log.push(format!("rewrite {id} from {first} on"));
                self.write(&id, (first..spec.size.get() / BLOCK).step_by(2))?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        for id in self.volumes.clone().into_keys() {
            self.end_volume(&id)?;
        }
        for id in std::mem::take(&mut self.snapshots).into_keys() {
            self.helper.ask(&delete_snapshot(&id))?;
        }
        let left = self.promised()?;
        ensure!(left == 0, "{left} bytes stay promised");
        Ok(())
    }
}
