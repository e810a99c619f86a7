//! One session set-up, from the client's first token to the verdict.

use std::fmt;
use std::sync::Arc;

use super::ntlm::Ntlm;
use super::spnego::{NegState, NegTokenInit, NegTokenResp};
use super::{Authenticated, Input, Mechanism, MechanismStep, Reason, Refusal, Settings};

/// Tokens that a client may send in one authentication: NTLM takes two, and SPNEGO may add two.
const STEPS_MAX: u8 = 8;
/// Bytes of a client's token, a ticket included.
const TOKEN_MAX: usize = 64 * 1024;

/// What to answer to a SESSION_SETUP request.
#[derive(Debug)]
pub enum Step {
    /// STATUS_MORE_PROCESSING_REQUIRED, with this token.
    Continue(Vec<u8>),
    /// STATUS_SUCCESS, with this token.
    Done(Box<Authenticated>, Vec<u8>),
    /// [`Refusal::status`], without a token. The rest of the refusal is for the log.
    Refused(Box<Refusal>),
}

/// One authentication: of a session, of its user anew, or of a channel to be bound.
///
/// After [`Step::Done`] or [`Step::Refused`] it refuses everything.
pub struct Acceptor {
    /// Best first; NTLM is the last.
    mechanisms: Vec<Box<dyn Mechanism>>,
    state: State,
    steps: u8,
}

enum State {
    Start,
    /// NTLM without SPNEGO around.
    Raw(Box<dyn Mechanism>),
    Spnego(Negotiation),
    Ended,
}

/// A mechanism has been chosen.
struct Negotiation {
    mechanism: Box<dyn Mechanism>,
    /// The identifier that the client knows it by: some have more than one.
    oid: Vec<u8>,
    /// The client's list of mechanisms, as it was written.
    list: Vec<u8>,
    /// The list must be signed, because what the client preferred was not chosen: somebody on the way may have taken
    /// the better ones out.
    mic_required: bool,
    /// The client has been told which mechanism it is.
    told: bool,
    /// The mechanism is done, and the client's signature is all that is missing.
    done: Option<Box<Authenticated>>,
}

impl Acceptor {
    /// Takes NTLM only.
    #[must_use]
    pub fn new(settings: Arc<Settings>) -> Self {
        let ntlm: Box<dyn Mechanism> = Box::new(Ntlm::new(settings));
        Self { mechanisms: vec![ntlm], state: State::Start, steps: 0 }
    }

    /// Takes this mechanism, too. The client chooses.
    #[must_use]
    pub fn with(mut self, mechanism: Box<dyn Mechanism>) -> Self {
        let before_ntlm = self.mechanisms.len() - 1;
        self.mechanisms.insert(before_ntlm, mechanism);
        self
    }

    /// Whether the next step may block: it may be one of a mechanism that does ([`Mechanism::blocks`]).
    #[must_use]
    pub fn may_block(&self) -> bool {
        match &self.state {
            State::Start => self.mechanisms.iter().any(|mechanism| mechanism.blocks()),
            State::Raw(mechanism) => mechanism.blocks(),
            State::Spnego(negotiation) => negotiation.mechanism.blocks(),
            State::Ended => false,
        }
    }

    /// Takes the security buffer of a SESSION_SETUP request.
    pub fn step(&mut self, token: &[u8], input: &Input<'_>) -> Step {
        self.steps = self.steps.saturating_add(1);
        let state = std::mem::replace(&mut self.state, State::Ended);
        if token.len() > TOKEN_MAX {
            return Step::Refused(Reason::Malformed("token").into());
        }
        if self.steps > STEPS_MAX {
            return Step::Refused(Reason::OutOfTurn.into());
        }
        let step = match state {
            State::Start if Ntlm::is_message(token) => match self.mechanisms.pop() {
                Some(ntlm) => self.raw(ntlm, token, input),
                None => Err(Reason::NoMechanism.into()),
            },
            State::Raw(mechanism) => self.raw(mechanism, token, input),
            State::Start => self.first(token, input),
            State::Spnego(negotiation) => self.next(negotiation, token, input),
            State::Ended => Err(Reason::OutOfTurn.into()),
        };
        step.unwrap_or_else(Step::Refused)
    }

    fn raw(
        &mut self,
        mut mechanism: Box<dyn Mechanism>,
        token: &[u8],
        input: &Input<'_>,
    ) -> Result<Step, Box<Refusal>> {
        match mechanism.step(token, input) {
            MechanismStep::Continue(token) => {
                self.state = State::Raw(mechanism);
                Ok(Step::Continue(token))
            }
            MechanismStep::Done(who, token) => Ok(Step::Done(who, token)),
            MechanismStep::Refused(refusal) => Err(refusal),
        }
    }

    fn first(&mut self, token: &[u8], input: &Input<'_>) -> Result<Step, Box<Refusal>> {
        let init = NegTokenInit::parse(token).map_err(|_| Reason::Malformed("SPNEGO token"))?;
        let choice = init.mechanisms.iter().enumerate().find_map(|(preference, oid)| {
            Some((preference, *oid, self.mechanisms.iter().position(|ours| ours.is(oid))?))
        });
        let (preference, oid, index) = choice.ok_or(Reason::NoMechanism)?;
        let negotiation = Negotiation {
            mechanism: self.mechanisms.swap_remove(index),
            oid: oid.to_vec(),
            list: init.mechanisms_der.to_vec(),
            mic_required: preference > 0,
            told: false,
            done: None,
        };
        // The token that comes along is one of the mechanism that the client likes best.
        match init.token.filter(|_| preference == 0) {
            Some(token) => self.mechanism(negotiation, token, None, input),
            None => Ok(self.go_on(negotiation, None, None)),
        }
    }

    fn next(
        &mut self,
        mut negotiation: Negotiation,
        token: &[u8],
        input: &Input<'_>,
    ) -> Result<Step, Box<Refusal>> {
        let said = NegTokenResp::parse(token).map_err(|_| Reason::Malformed("SPNEGO token"))?;
        if said.state == Some(NegState::Reject) {
            return Err(Reason::OutOfTurn.into());
        }
        match (negotiation.done.take(), said.token) {
            // All that was asked for is the signature.
            (Some(who), None) if said.mic.is_some() => {
                self.finish(negotiation, who, Vec::new(), said.mic)
            }
            (None, Some(token)) => self.mechanism(negotiation, token, said.mic, input),
            _ => Err(Reason::OutOfTurn.into()),
        }
    }

    fn mechanism(
        &mut self,
        mut negotiation: Negotiation,
        token: &[u8],
        mic: Option<&[u8]>,
        input: &Input<'_>,
    ) -> Result<Step, Box<Refusal>> {
        match negotiation.mechanism.step(token, input) {
            MechanismStep::Continue(token) => Ok(self.go_on(negotiation, Some(&token), None)),
            MechanismStep::Done(who, token) => self.finish(negotiation, who, token, mic),
            MechanismStep::Refused(refusal) => Err(refusal),
        }
    }

    /// Says what is to be said when more is to come.
    fn go_on(
        &mut self,
        mut negotiation: Negotiation,
        token: Option<&[u8]>,
        mic: Option<&[u8]>,
    ) -> Step {
        let first = !std::mem::replace(&mut negotiation.told, true);
        let state = match first && negotiation.mic_required {
            true => NegState::RequestMic,
            false => NegState::AcceptIncomplete,
        };
        let mechanism = first.then_some(&negotiation.oid[..]);
        let answer = NegTokenResp { state: Some(state), mechanism, token, mic }.emit();
        self.state = State::Spnego(negotiation);
        Step::Continue(answer)
    }

    /// The mechanism is done: is the list of mechanisms the one that the client has sent?
    fn finish(
        &mut self,
        mut negotiation: Negotiation,
        who: Box<Authenticated>,
        token: Vec<u8>,
        mic: Option<&[u8]>,
    ) -> Result<Step, Box<Refusal>> {
        let ours = negotiation.mechanism.make_mic(&negotiation.list);
        let token = Some(&token[..]).filter(|token| !token.is_empty());
        let verified = mic.map(|mic| negotiation.mechanism.verify_mic(&negotiation.list, mic));
        let mic = match verified {
            Some(Some(false)) => {
                let mut refusal: Box<Refusal> = Reason::BadMechListMic.into();
                let who = *who;
                (refusal.user, refusal.domain) = (who.user, who.domain);
                refusal.workstation = who.workstation;
                return Err(refusal);
            }
            // Who has no key cannot sign, and gains nothing by a mechanism that is weaker than what it has not.
            Some(None) => None,
            Some(Some(true)) => ours,
            None if negotiation.mic_required && ours.is_some() => {
                negotiation.done = Some(who);
                return Ok(self.go_on(negotiation, token, ours.as_deref()));
            }
            None => None,
        };
        let first = !negotiation.told;
        let answer = NegTokenResp {
            state: Some(NegState::AcceptCompleted),
            mechanism: first.then_some(&negotiation.oid[..]),
            token,
            mic: mic.as_deref(),
        };
        Ok(Step::Done(who, answer.emit()))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Start => "waits for the first token",
            State::Raw(_) | State::Spnego(_) => "waits for more",
            State::Ended => "has ended",
        };
        write!(f, "Acceptor({state}, step {})", self.steps)
    }
}

#[cfg(test)]
mod tests;
