//! Large signed requests whose signatures are verified together.
//!
//! AES-CMAC is a chain: each block of a message waits for the one before, and a core that verifies one message has
//! nothing to do for three quarters of the time. Those of up to four messages are computed in the time of one. They
//! gather while the next one is in the socket already, and never wait for what is still to come.

use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::Arc;

use smb::crypto::{ABREAST, Signer};
use smb::wire::header::{Command, Flags, Header};

use super::super::runtime;
use super::super::transfer::Buffer;
use super::Channel;

/// Whole frames of one message each, in the order in which they came, all signed with one key.
#[derive(Default)]
pub(super) struct Gathered {
    frames: Vec<Buffer>,
    signer: Option<Arc<Signer>>,
}

impl Gathered {
    /// Takes a frame: it is served now, behind those that are here, or with others that follow.
    pub(super) fn take(&mut self, channel: &Rc<Channel>, frame: Buffer) {
        let signer = channel.verified_with(&frame);
        let same = match (&self.signer, &signer) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        if !same {
            self.serve(channel);
        }
        match signer {
            Some(signer) => {
                self.signer = Some(signer);
                self.frames.push(frame);
                if self.frames.len() == ABREAST {
                    self.serve(channel);
                }
            }
            None => serve(channel, frame, None),
        }
    }

    /// Serves what is here.
    pub(super) fn serve(&mut self, channel: &Rc<Channel>) {
        let Some(signer) = self.signer.take() else { return };
        let mut frames = std::mem::take(&mut self.frames);
        let mut verified = Vec::new();
        if frames.len() > 1 {
            let messages: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
            verified = signer.verify_messages(&messages);
            // Their answers may go out together.
            channel.output.cork();
        }
        for (at, frame) in frames.drain(..).enumerate() {
            // One that is wrong is looked at again by itself, and refused.
            let good = verified.get(at).is_some_and(Result::is_ok);
            serve(channel, frame, good.then(|| signer.clone()));
        }
        channel.output.uncork();
        self.frames = frames;
    }
}

/// Serves a frame, unless one before it has ended the connection; with the signer by which its signature was found
/// right, if it was looked at already.
pub(super) fn serve(
    channel: &Rc<Channel>,
    frame: impl DerefMut<Target = [u8]> + 'static,
    verified: Option<Arc<Signer>>,
) {
    if !channel.shared.is_open() {
        return;
    }
    runtime::run_now(Box::pin(channel.clone().serve_frame(frame, verified)));
}

impl Channel {
    /// Who would verify a frame, if it is one signed message that gains by company: a WRITE, which changes no
    /// session, tree or open that what follows is admitted by before it is served.
    fn verified_with(&self, frame: &[u8]) -> Option<Arc<Signer>> {
        let header = Header::parse(frame).ok()?;
        let is_write = header.command == Command::Write;
        if !is_write || header.next != 0 || !header.flags.contains(Flags::SIGNED) {
            return None;
        }
        let signer = self.bound(header.session)?.signer.clone()?;
        signer.gains_by_many().then_some(signer)
    }
}
