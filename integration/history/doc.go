// Package history keeps three accounts of the same hours, each by somebody who
// knows nothing of the others: [Clients] writes down what agents were told of
// their commits, the provider's ledger what was asked for and what was done,
// and [Record] what every row of the outbox went through. [Check] holds them
// against each other.
package history
