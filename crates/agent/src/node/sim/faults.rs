//! Events that the agent does not cause: pods that come and go, and faults of the API.

use super::world::Writes;
use super::*;
use crate::plan::description;

impl World {
    /// Of the API; `life`: an agent that runs meanwhile.
    pub(super) fn fault(&mut self, life: Option<&mut Life>) {
        match self.dice.roll(6) {
            0 => self.api.is_stale = true,
            1 => {
                self.api.writes =
                    [Writes::Taken, Writes::Refused, Writes::Conflict, Writes::Half][self.dice.roll(4)]
            }
            2 => {
                let key = self.any();
                self.forge_condition(&key);
            }
            3 => {
                self.api.list_takes = self.dice.up_to(2000);
                self.api.latency = self.dice.up_to(400);
            }
            4 => life.into_iter().for_each(|life| life.lose_watch(self.now)),
            _ => {
                self.api.refuses_until = self.now + self.dice.up_to(3000);
                life.into_iter().for_each(|life| life.lose_watch(self.now));
            }
        }
    }

    /// Something happens to a pod.
    pub(super) fn event(&mut self, life: Option<&mut Life>) {
        let key = self.any();
        match self.dice.roll(10) {
            0..4 => self.annotate(&key),
            4 | 5 => self.start_sandbox(&key),
            6 => self.end_sandbox(&key),
            7 => {
                // A rollout: the next pod asks for the same.
                let want = self.pods[&key].want.clone();
                self.delete(&key);
                self.create(want);
            }
            8 => {
                self.delete(&key);
                let want = world::want(&mut self.dice);
                self.create(want);
            }
            // By hand, which an agent that runs notices a minute later.
            _ => match life {
                None => self.attach_by_hand(&key),
                Some(_) => self.annotate(&key),
            },
        }
    }

    fn annotate(&mut self, key: &Key) {
        let want = world::want(&mut self.dice);
        self.pods.get_mut(key).unwrap().want = want;
        self.tell(key);
    }

    /// Half a write, somebody else's, one that was lost.
    fn forge_condition(&mut self, key: &Key) {
        let rules = world::rules(&mut self.dice);
        let (is_true, is_there) = (self.dice.one_in(2), !self.dice.one_in(3));
        let pod = self.pods.get_mut(key).unwrap();
        let netns = pod.sandbox.as_ref().map_or(1, |sandbox| sandbox.netns);
        pod.condition = is_there.then(|| Claim { description: description(&rules, netns), is_true });
        self.tell(key);
    }

    fn attach_by_hand(&mut self, key: &Key) {
        let (rules, detaches) = (world::rules(&mut self.dice), self.dice.one_in(3));
        let now = self.now;
        let Some(sandbox) = self.sandbox(key).filter(|sandbox| sandbox.has_process < now) else { return };
        if detaches { sandbox.detach() } else { sandbox.attach(rules) }
    }
}
