//! The ways of flows without sockets: which devices their translated segments leave by.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use super::Splices;
use crate::splice::layout::{Face, Stage, WAY, WAY_LOST, addresses_of};
use crate::splice::peers::Question;

/// The result of a question about the way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The flow has ended.
    Over,
    /// The session is still being cut: its sockets speak for themselves.
    InTheTail,
    /// The question has not left by any device that has the programs.
    Unseen {
        /// The device by which segments left before.
        before: u32,
    },
    /// It has left by this device, and translated segments follow it.
    By(u32),
}

impl Splices {
    /// Questions for the peers of this process's flows whose way may have changed: `is_concerned` gets our
    /// address and the device of a connection. [`Splices::way`] tells the result of each.
    pub fn ways_to_ask(&self, is_concerned: impl Fn(IpAddr, u32) -> bool) -> Vec<Question> {
        let mut questions = Vec::new();
        for place in self.own_places() {
            if !matches!(self.stage(place), Stage::Tail | Stage::Spliced) {
                continue;
            }
            for (side, face) in self.at(place).faces.iter().enumerate() {
                let (_, own) = addresses_of(&face.key());
                if is_concerned(own.ip(), face.device.load(Ordering::Relaxed)) {
                    face.known.fetch_and(!WAY, Ordering::AcqRel);
                    questions.push(self.at(place).question(place, side));
                }
            }
        }
        questions
    }

    /// The result of this question.
    pub fn way(&self, question: &Question) -> Way {
        let Some((stage, face)) = self.asked(question) else { return Way::Over };
        let device = face.device.load(Ordering::Relaxed);
        match stage {
            Stage::Tail => Way::InTheTail,
            Stage::Spliced if face.known.load(Ordering::Acquire) & WAY != 0 => Way::By(device),
            Stage::Spliced => Way::Unseen { before: device },
            _ => Way::Over,
        }
    }

    /// The question once more, with the numbers of now. [`Splices::way`] tells the result of this one.
    pub fn once_more(&self, asked: &Question) -> Question {
        let (place, side) = (asked.place >> 1, asked.place as usize & 1);
        self.at(place).faces[side].known.fetch_and(!WAY, Ordering::AcqRel);
        self.at(place).question(place, side)
    }

    /// The flow has to end: its peer is not reached any more. Whoever watches it resets both peers.
    pub fn lose_way(&self, question: &Question) {
        if let Some((_, face)) = self.asked(question) {
            face.known.fetch_or(WAY_LOST, Ordering::AcqRel);
        }
    }

    /// This process's flows between such ends have to end.
    pub fn lose_ways(&self, have_to_end: impl Fn([SocketAddr; 4]) -> bool) {
        for place in self.own_places() {
            if !matches!(self.stage(place), Stage::Tail | Stage::Spliced) {
                continue;
            }
            let faces = &self.at(place).faces;
            let [down, up] = faces.each_ref().map(|face| addresses_of(&face.key()));
            if have_to_end([down.0, down.1, up.1, up.0]) {
                faces.iter().for_each(|face| _ = face.known.fetch_or(WAY_LOST, Ordering::AcqRel));
            }
        }
    }

    /// All of this process's flows have to end.
    pub fn lose_all_ways(&self) {
        self.ways_to_ask(|_, _| true).iter().for_each(|question| self.lose_way(question));
    }

    /// The flow that was asked about, unless another one has its place.
    fn asked(&self, question: &Question) -> Option<(Stage, &Face)> {
        let place = question.place >> 1;
        let face = &self.at(place).faces[question.place as usize & 1];
        let is_same = addresses_of(&face.key()) == (question.peer, question.own);
        is_same.then(|| (self.stage(place), face))
    }
}
