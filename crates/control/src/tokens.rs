//! Tokens: the one place that mints them and that believes one (U14).

use domain::{caller::Caller, id::TokenId, scope::Scopes, token::Token};
use store::tokens::Revoked;
// The surfaces show these records as they are kept.
pub use store::tokens::TokenRecord;

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::{Detail, detail},
    error::Error,
};

/// What a new token is to be.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What it may do.
    pub scopes: Scopes,
    /// A note of its owner.
    pub name: TokenName,
}

/// A note on a token: at most 100 characters, all of them visible. May be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenName(String);

/// A token, this once.
#[derive(Clone, Debug)]
pub struct MintedToken {
    /// Its text. It is not kept.
    pub token: Token,
    /// What is kept.
    pub record: TokenRecord,
}

impl TokenName {
    /// Checks a note.
    pub fn new(name: String) -> Result<Self, Error> {
        if name.chars().count() > 100 || name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "at most 100 characters, none of them control"));
        }
        Ok(Self(name))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Control {
    /// Finds out who holds this token.
    ///
    /// The one use case without a caller, because it makes one.
    pub async fn authenticate(&self, token: &Token) -> Result<Caller, Error> {
        match self.store().token_by_hash(&token.hash()).await? {
            Some(record) if record.revoked.is_none() => Ok(Caller {
                organization: record.organization,
                user: record.owner,
                token: record.id,
                scopes: record.scopes,
            }),
            Some(_) | None => Err(Error::Unauthenticated),
        }
    }

    /// Mints a token in the caller's name.
    pub async fn mint_token(&self, caller: &Caller, new: NewToken) -> Result<MintedToken, Error> {
        let action = Action::TokenMint;
        let detail =
            detail([("scopes", new.scopes.to_string().into()), ("name", new.name.as_str().into())]);
        let permit = match may(caller, action, Owner::Caller) {
            Ok(permit) => permit,
            Err(denied) => {
                return Err(self.refuse(caller, action, None, detail, denied.into()).await);
            }
        };
        let mut bytes = [0; 32];
        (self.sources().random)(&mut bytes);
        let token = Token::from_random(bytes);
        let record = TokenRecord {
            id: TokenId::from_random(self.random()),
            organization: caller.organization.clone(),
            owner: caller.user.clone(),
            region: self.settings().region.clone(),
            scopes: new.scopes,
            name: new.name.0,
            created: self.now(),
            revoked: None,
        };
        let line = self.allowed(caller, permit, Some(record.id.as_str()), detail);
        self.store().add_token(&record, &token.hash(), &line).await?;
        Ok(MintedToken { token, record })
    }

    /// Lists the newest tokens of the organisation.
    pub async fn list_tokens(&self, caller: &Caller) -> Result<Vec<TokenRecord>, Error> {
        let action = Action::TokenList;
        let judged = may(caller, action, Owner::Caller).map_err(Error::from);
        let judged = judged.map(|permit| (permit, ()));
        self.record(caller, action, None, Detail::new(), judged).await?;
        Ok(self.store().tokens(&caller.organization).await?)
    }

    /// Takes a token out of use, at once. Doing it again is not an error.
    pub async fn revoke_token(&self, caller: &Caller, id: &TokenId) -> Result<(), Error> {
        let action = Action::TokenRevoke;
        let object = Some(id.as_str());
        let judged = async {
            let found = self.store().token(&caller.organization, id).await?;
            Ok(may(caller, action, Owner::Found(found.as_ref().map(|token| &token.organization)))?)
        };
        let permit = match judged.await {
            Ok(permit) => permit,
            Err(error) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        };
        let line = self.allowed(caller, permit, object, Detail::new());
        match self.store().revoke_token(&caller.organization, id, self.now(), &line).await? {
            Revoked::Now | Revoked::Before => Ok(()),
            Revoked::Unknown => Err(Error::NotFound { noun: "token" }),
        }
    }
}
