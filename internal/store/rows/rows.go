// Package rows holds the methods of the store that are the same in every database: what
// rules make of payouts and promotions, API keys, the audit, idempotency keys, dead letters,
// uploads, leases, instances, webhook endpoints and deliveries, reports, and single
// statements about templates, draws and offsets.
//
// A driver opens Tables with a DB and what it does differently. All statements of a transaction are
// sent before the first result arrives, so that no lock is held while a client is silent. A
// method that lets a rule decide reads, decides, and writes what is still as it was read;
// what has changed meanwhile is read again.
//
// The texts use only what PostgreSQL and SQLite have in common: $1, CAST,
// RETURNING without an alias, and one statement per row instead of an array.
// Dialect holds the differences.
package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Statement is one SQL statement.
type Statement struct {
	SQL string
	// Args are the values of $1, $2 and so on. The driver stores a time.Time to
	// the microsecond and a time.Duration as an interval. Nil is NULL.
	Args []any
	// Row reads one row of the result. It is nil for a statement that returns
	// no rows.
	Row func(scan Scan) error
	// Must has the transaction fail with ErrStale, and change nothing, unless the statement
	// returns a row. Row is nil then.
	Must bool
}

// Scan copies the columns of the current row into dest.
type Scan = func(dest ...any) error

// DB runs statements. Its errors begin with what, which names the call. A
// statement that breaks a foreign key fails with ErrNoParent, one that inserts a coupon with
// an ID or a code in use with ErrTaken, and one with a slot in use with ErrStale.
type DB interface {
	// Run runs the statements that build returns in order, as one transaction. It calls
	// build again for each try.
	Run(ctx context.Context, what string, mode Mode, build func() []Statement) error
}

// Mode is how a DB runs statements.
type Mode struct {
	// Write is for statements that change rows. Others all see the same rows.
	Write bool
	// Long is for statements whose duration grows with the table. Only ctx limits it.
	Long bool
}

// database runs the statements of this package, whose texts it puts into a dialect.
type database struct {
	db        DB
	inDialect func(sql string) string
	// texts has the result of inDialect by text. There are as many as this package has texts.
	texts sync.Map
}

func (d *database) Write(ctx context.Context, what string, build func() []Statement) error {
	return d.run(ctx, what, Mode{Write: true}, build)
}

func (d *database) WriteLong(ctx context.Context, what string, build func() []Statement) error {
	return d.run(ctx, what, Mode{Write: true, Long: true}, build)
}

func (d *database) Read(ctx context.Context, what string, build func() Statement) error {
	return d.run(ctx, what, Mode{}, func() []Statement { return []Statement{build()} })
}

func (d *database) ReadLong(ctx context.Context, what string, build func() Statement) error {
	return d.run(ctx, what, Mode{Long: true}, func() []Statement { return []Statement{build()} })
}

func (d *database) Snapshot(ctx context.Context, what string, build func() []Statement) error {
	return d.run(ctx, what, Mode{}, build)
}

func (d *database) SnapshotLong(ctx context.Context, what string, build func() []Statement) error {
	return d.run(ctx, what, Mode{Long: true}, build)
}

func (d *database) run(ctx context.Context, what string, mode Mode, build func() []Statement) error {
	return d.db.Run(ctx, what, mode, func() []Statement {
		statements := build()
		for i := range statements {
			statements[i].SQL = d.text(statements[i].SQL)
		}
		return statements
	})
}

func (d *database) text(sql string) string {
	if text, ok := d.texts.Load(sql); ok {
		return text.(string)
	}
	text := d.inDialect(sql)
	d.texts.Store(sql, text)
	return text
}

// ErrNoParent means that a row refers to another row that does not exist.
var ErrNoParent = errors.New("a row refers to another row that does not exist")

// ErrStale means that a statement with Must returned no row: what a rule read has changed.
var ErrStale = errors.New("what was read has changed meanwhile")

// ErrTaken means that another coupon has the ID or the code of a new one.
var ErrTaken = errors.New("another coupon has the id or the code")

// Dialect holds what the databases write differently.
type Dialect struct {
	// Clock is the current time of the database, as SQL. It advances within a
	// transaction if other transactions can change rows meanwhile.
	Clock string
	// SkipLocked is appended to a SELECT. It locks the rows and skips those
	// that other transactions have locked. It is empty if one transaction
	// writes at a time.
	SkipLocked string
	// LockRow is appended to a SELECT. It locks the row until the transaction ends.
	// It is empty if one transaction writes at a time.
	LockRow string
	// Walk returns the condition and the order of a page by descending ID. Its
	// rows have an ID below $1 and the given values in the given columns. The
	// database must walk the index on these columns and the ID.
	Walk func(columns, values []string) (where, order string)
	// ByBytes follows a text that is compared by its bytes.
	ByBytes string
	// Index follows the name of a table. It makes a statement use an index, if the
	// database needs that.
	Index func(name string) string
	// Among follows a column. It is a condition: the column is one of the IDs $1, a slice.
	Among string
	// Active is the condition of promotions m that still need work. It is that of an index.
	Active string
	// Returned is a FROM and WHERE clause with the READY payouts p of promotion $1 that were
	// dispatched before.
	Returned string
	// Each returns a CROSS JOIN with the rows of a table that meet a condition. The database
	// looks them up for each row of what stands before it. Otherwise it may begin with all
	// rows of the table, and sort or compare them.
	Each func(table, alias, condition string) string
	// ByLocale follows a text that is compared with a column of codes. Where a database has
	// several orders of texts, that of coupons and that of imported codes differ, and
	// without it no index is used.
	ByLocale string
	// PayoutsOfUser returns a FROM clause with the payouts of a user of the latest
	// promotions, at most limit, as p. Both are parameters or literals.
	PayoutsOfUser func(user, limit string) string
	// PayoutPage returns the statement that lists payouts of promotion $1 with a target above
	// $2, at most $3. If they are given, it filters by state and error code $4.
	PayoutPage func(state *reward.State, code string) string
	// ClaimLookups claims the payouts whose lookup is due at $1, at most $2, the oldest first,
	// and makes them due at $3. Neither UNKNOWN ones nor those with a second lookup starve the
	// others. It returns PayoutColumns.
	ClaimLookups string
	// List returns a FROM item with the elements of a parameter that is a JSON array of
	// texts: key, which counts from 0, and value.
	List func(param string) string
	// Records returns a FROM item with the elements of a parameter that is a JSON array of
	// objects. A column is the name of a field, and its type.
	Records func(param string, columns ...string) string
	// TellIssued records for endpoints which coupons the latest version of template $1 has
	// issued. It is empty if triggers do.
	TellIssued string
	// JSON is the type of a parameter with an object of JSON, as SQL that follows it.
	JSON string
}

// Tables is the store: it has the tables of a database. What its driver does by itself is
// in Driver. These rules hold for every method:
//
//   - Methods are safe for concurrent use.
//   - A method that writes runs one statement or one short transaction. It changes
//     everything that it promises, or nothing.
//   - A change of state names the state, and where it matters the dispatch number, that it
//     expects. A row that has moved on stays as it is, so a repeated call does no harm. Only
//     a confirmed charge (PayoutFinish, PayoutSettle) makes a row SUCCEEDED from any state
//     and dispatch.
//   - Every change of a payout's state moves the counts of its promotion in the same
//     transaction. Package rules defines what each change does to a row.
//   - A batch has at most store.BatchMax items. The caller cuts larger ones.
//   - An error of type *reward.Error means that the request cannot succeed as it is. The
//     comments name its code. After any other error the outcome may be unknown, and the
//     caller may repeat the call. Unless they say otherwise, methods that change a promotion
//     return CodeNotFound, and methods that change an upload CodeUploadNotFound, if there is
//     none.
//   - Callers pass the time in, so that tests can move it. Methods that use the clock of the
//     database instead say so.
//
// These invariants of coupon templates hold at every commit:
//
//   - Live of a template is the number of its coupons that are not CANCELLED. Live and the
//     promised places (Granted less Used) are at most TotalQuantity.
//   - IssuedTotal of a template is the number of all its coupons. If the template has
//     imported codes, IssuedTotal and the promised places are at most CodesImported, and the
//     n-th coupon ever issued has the n-th code.
//   - Template, generation and ticket are unique over coupons and rejected requests together.
//   - An archived template never changes, and no coupon of it is inserted. Its rows may be
//     gone; these properties then hold for the coupons that it had.
//   - A user has at most PerUserLimit slots at a template. A coupon gets the lowest free
//     slot, counted from 1, when it is issued. Cancelling the coupon frees the slot if the
//     template then re-issues after a cancel. Otherwise the slot stays taken.
//   - Version of a template grows by exactly 1 in each transaction that changes what the gate
//     must know: TemplateChange, TemplateTouch, TemplateGrant, TemplateShrink,
//     TemplateReleasePlaces, CouponLeave, CouponCancel, DrawDone, CouponEndHolds that
//     cancelled a coupon, CodesPublish, and each CouponSettle that settled a request. Coupons
//     and rejected requests store the version of their last change.
//
// A method that takes one template returns CodeTemplateNotFound if it does not exist. Lists
// are then empty, and CouponRecount returns zeros. A method that would change an archived
// template, CodesBegin and RefusalRecord return CodeArchived, but CouponSettle refuses the
// batch with RefusedArchived.
//
// A row is flagged if its MaybeCalled is set: a charge may have left, so a refusal alone does
// not prove that nothing was paid.
type Tables struct {
	Driver
	db        *database
	payouts   Payouts
	dialect   Dialect
	cancelled marks // of PayoutCancelStep
}

// New returns the store of a driver. db runs the statements of this package.
func New(db DB, driver driver, d Dialect) *Tables {
	return &Tables{Driver: driver, db: &database{db: db, inDialect: d.replacer().Replace}, payouts: driver, dialect: d}
}

type driver interface {
	Driver
	Payouts
}

// Driver is what PostgreSQL and SQLite do differently.
type Driver interface {
	// Ping returns an error if the database cannot be reached.
	Ping(ctx context.Context) error
	// Clock returns the time of the database.
	Clock(ctx context.Context) (time.Time, error)
	// FullAt returns when a transaction of this process last failed with store.ErrFull; the
	// zero time if none did.
	FullAt() time.Time
	// Refusal returns when the server last refused this process a connection because of its
	// limits, or a write, and what that means; the zero time if it never did.
	Refusal() (at time.Time, reason string)
	// Migrate brings the schema up to date. Several instances may call it at the same time.
	Migrate(ctx context.Context) error
	// MigrateBack takes the schema back to an earlier version, for programs of that version.
	// It removes what later versions added, with its rows. No instance may use the schema
	// meanwhile. A schema of that version or an earlier one stays as it is.
	MigrateBack(ctx context.Context, version int64) error
	// Close closes the connections. No other method may be called afterwards.
	Close()

	// PromotionChanges returns what has changed in the list of PromotionActive since
	// an earlier call; since is the mark which that call returned. It costs as much as
	// there is to return. It returns the whole list if since is empty, or if the
	// server has restarted or was replaced after that call.
	//
	// Every change that is committed before the call begins, and that the earlier
	// call did not return, is in the result. The order in which transactions began
	// does not matter. A promotion may be returned although it is as before.
	PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error)
	// PayoutGetMany returns the payouts among ids that exist, in no fixed order.
	PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)

	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
}

// replacer returns what puts the dialect into the texts of this package: it replaces :clock
// and the like.
func (d Dialect) replacer() *strings.Replacer {
	return strings.NewReplacer(
		":clock", d.Clock, ":skip_locked", d.SkipLocked, ":lock_row", d.LockRow, ":by_locale", d.ByLocale,
		":by_open", d.Index("payouts_open"), ":by_code", d.Index("payouts_code"), ":by_due", d.Index("promotions_due"),
		":payouts_of_user", d.PayoutsOfUser("$6", strconv.Itoa(store.UserPayoutsMax)), ":first_of_user", d.PayoutsOfUser("$1", "$2"), ":first_of_each", d.PayoutsOfUser("l.value", "$2"),
		":among", d.Among, ":active", d.Active, ":returned", d.Returned, ":limit2", d.Limit("$2", "m.currency"),
		":line2", d.Records("$2", lineColumns...), ":line3", d.Records("$3", lineColumns...), ":records2", d.Records("$2", settleColumns...),
		":cancels2", d.Records("$2", cancelColumns...), ":named_coupon", d.Each("coupons", "c", "c.id = r.id AND c.template_id = $1"),
		":promotions1", d.Records("$1", readColumns...),
		":latest_coupon", d.Each("coupons", "c", "c.template_id = $1 AND c.id = latest.id AND c.user_id = latest.user_id"),
		":latest_rejection", d.Each("coupon_rejections", "r", "r.template_id = $1 AND r.user_id = latest.user_id AND r.ticket = latest.ticket AND r.generation = latest.generation"),
		":list1", d.List("$1"), ":list2", d.List("$2"), ":list4", d.List("$4"), ":list5", d.List("$5"),
	)
}

// Text returns a text of this package in the dialect.
func (d Dialect) Text(sql string) string { return d.replacer().Replace(sql) }

// Statements returns the texts that read tables which grow, by name. Tests of
// the drivers check their query plans.
func (d Dialect) Statements() map[string]string {
	all := map[string]string{
		"find an API key": keyByHash, "list API keys": listKeys, "use an API key": useKey,
		"end an audit line": endAudit, "drop an audit line": dropAudit, "claim a key": claimKey, "read a key": readKey, "delete expired keys": deleteExpiredKeys, "finish a key": finishKey,
		"drop a key": dropKey, "release a key": releaseKey, "claim webhook deliveries": claimWebhooks,
		"forget audit lines": forgetAudit, "forget dead letters": forgetLetters,
		"close a dead letter": closeLetter,
		"assign a template":   assignTemplate, "list entrants": listEntrants, "draws of a user": drawsEntered, "list refusals": listRefusals, "recount coupons": recountCoupons,
		"list uploads": d.uploadsSQL(), "list authors": listAuthors,
		"a promotion": promotionSQL, "views": ViewsOf, "due promotions": duePromotions, "promotions to ask for": unaskedPromotions, "active promotions": ActiveSQL,
		"promotions of records": registeredPromotions, "write a promotion": updatePromotion, "lock counts": lockCounts, "correct counts": correctCounts, "count a repair": countRepair, "continue an ended promotion": continueEnded, "promotions as read": asRead, "counts within bounds": withinBounds,
		"pick first payouts": pickFirst, "pick approved payouts": pickApproved, "pick retries": pickRetries, "pick returned payouts": pickReturned, "counts within limits": countsWithin,
		"flagged amount": flaggedSQL, "counts of a canary": judgedCounts, "counts of an end": endedCounts, "an open upload": openUpload,
		"undecided payouts": undecided, "worth of a promotion": sameWorth, "approve all": approveAll, "approved payouts left": approvedLeft,
		"tell endpoints":              endpointEvent,
		"grant a promotion its worth": grantDay, "read a grant": isGranted,
		"a template": templateSQL, "lock the row of a template": lockTemplateSQL, "touch a template": touchTemplate, "raise a generation": newGeneration, "move places": movePlaces, "change settings": changeSettings, "change settings of an unused template": changeUnused, "has an entrant": hasEntrant, "set a floor": setFloor, "close a draw": closeDraw, "end a draw": endDraw, "requests that left": leftRequests,
		"count coupons": countCoupons, "count rejections": countRejections, "count who cancelled coupons": countCancelled,
		"a coupon": couponSQL, "coupons of a user": couponsOfUser, "coupons by code": couponsByCode, "use a coupon": useCoupon, "confirm a coupon": confirmCoupon, "coupons to cancel": couponsNamed, "cancel coupons": cancelCoupons, "count cancelled coupons": cancelledAll, "end holds": endHolds,
		"slots of users": slotsOfUsers, "latest coupons of users": latestOfUsers, "settled requests": settledRequests, "same requests": sameRequests,
		"settle a template": settleTemplate, "insert coupons": insertCoupons, "insert rejections": insertRejections,
		"latest outcomes": latestOutcomes, "history of a user": historyOfUser, "expired holds": expiredHolds, "settled tickets": settledAbove,
		"changed holdings": holdingsAbove, "holders": holders, "waiting line": waitingLine,
		"return codes": returnCodes, "forget the codes of coupons": forgetCodesOf, "free places": freePlaces, "lengthen an import": lengthenImport, "changed holders": changedHolders,
		"a line": lineOf, "store a leave": storeLeft, "count a leave": countLeft, "draw now": drawNow, "save entrants": saveEntrants, "has entrants": hasEntrants,
		"latest refusal": latestRefusal, "end a refusal": endRefusal, "begin a refusal": beginRefusal, "tell that a template is sold out": soldOutEvent, "count what is sold out": countSoldOut,
		"find a taken code": takenCode, "lock an import": lockImport, "stage codes": stageCodes, "count staged codes": countStaged,
		"read for an import": readForImport, "publish an import": publishImport, "count published codes": countPublished,
		"expire coupons": expireCoupons, "find ended holds": endedHolds,
		"a payout": onePayout, "attempts of a payout": attemptsOf, "payouts of a user": userPayouts, "answers of a user": userAttempts, "promotions that paid users": promotionsPaid, "claim lookups": d.ClaimLookups,
		"list UNKNOWN payouts": listUnknown, "list UNKNOWN payouts of a user": listUnknownOf, "count error codes": payoutErrors, "amount of an error code": amountOfCode,
		"find the oldest payouts": oldestPayouts, "find payouts to sweep": queuedBefore, "find payouts to cancel": openAfter,
		"read a page of old codes": forgetCodes.page, "remove old codes": forgetCodes.remove[0],
		"example of an error code": exampleOfCode, "list reconciliations": listReconciliations,
		"find due endpoints": dueEndpoints, "claim deliveries": claimDeliveries, "list deliveries": listAll,
		"list deliveries with a state": listIn, "count pending deliveries": countPending, "find bulk events to drop": bulkToDrop,
		"delete old deliveries": deleteOldDeliveries, "abandon old deliveries": abandonOldDeliveries, "delete deliveries of nobody": deleteOrphans,
		"mark points of promotions": promotionPoints.mark, "fold points of promotions": promotionPoints.fold,
		"delete folded points of promotions": promotionPoints.deleteMarks, "timeline of a promotion": promotionPoints.read,
		"mark points of templates": templatePoints.mark, "timeline of a template": templatePoints.read,
	}
	replacer := d.replacer()
	for name, sql := range all {
		all[name] = replacer.Replace(sql)
	}
	return all
}

// write is a reading for one statement that writes.
func (t *Tables) write(ctx context.Context, what string, build func() Statement) error {
	return t.db.Write(ctx, what, func() []Statement { return []Statement{build()} })
}

// exec runs one statement that returns no rows.
func (t *Tables) exec(ctx context.Context, what, sql string, args ...any) error {
	return t.write(ctx, what, func() Statement { return Statement{SQL: sql, Args: args} })
}

// change runs one statement that returns the rows it wrote, and reports whether
// there were any.
func (t *Tables) change(ctx context.Context, what, sql string, args ...any) (bool, error) {
	var changed bool
	err := t.write(ctx, what, func() Statement {
		changed = false
		return Statement{SQL: sql, Args: args, Row: seen(&changed)}
	})
	return changed && err == nil, err
}

// seen returns a row reader that sets found.
func seen(found *bool) func(Scan) error {
	return func(Scan) error {
		*found = true
		return nil
	}
}

// into returns a row reader that appends each row to list.
func into[T any](list *[]T, read func(Scan, *T) error) func(Scan) error {
	return func(scan Scan) error {
		var row T
		err := read(scan, &row)
		*list = append(*list, row)
		return err
	}
}

// reading is database.Read, database.ReadLong or Tables.write.
type reading func(ctx context.Context, what string, build func() Statement) error

// list reads all rows of one statement.
func list[T any](ctx context.Context, db reading, what string, read func(Scan, *T) error, sql string, args ...any) ([]T, error) {
	var found []T
	err := db(ctx, what, func() Statement {
		found = nil
		return Statement{SQL: sql, Args: args, Row: into(&found, read)}
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// one reads the first row of one statement. It returns missing if there is none.
func one[T any](ctx context.Context, db reading, what string, missing error, read func(Scan, *T) error, sql string, args ...any) (T, error) {
	found, err := list(ctx, db, what, read, sql, args...)
	return first(found, err, missing)
}

// scanOne reads a single column.
func scanOne[T any](scan Scan, v *T) error { return scan(v) }

// texts reads a single column of texts, and orders them by their bytes.
func texts(ctx context.Context, db reading, what, sql string, args ...any) ([]string, error) {
	found, err := list(ctx, db, what, scanOne[string], sql, args...)
	slices.Sort(found)
	return found, err
}

// first returns the first row of a result. It returns missing if there is none,
// and err if that is set.
func first[T any](found []T, err, missing error) (row T, _ error) {
	switch {
	case err != nil:
		return row, err
	case len(found) == 0:
		return row, missing
	}
	return found[0], nil
}

// below returns the upper end of a page by descending ID: before, or no end if
// before is 0.
func below(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

// at scans a time in UTC. NULL becomes the zero time.
type at time.Time

// ScanTimestamptz spares PostgreSQL the conversion for Scan: many rows have several times.
func (a *at) ScanTimestamptz(t pgtype.Timestamptz) error {
	*a = at{}
	if t.Valid {
		*a = at(t.Time.UTC())
	}
	return nil
}

// Scan accepts a time or the microseconds since 1970.
func (a *at) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*a = at{}
	case time.Time:
		*a = at(value.UTC())
	case int64:
		*a = at(time.UnixMicro(value).UTC())
	default:
		return fmt.Errorf("cannot read a time from %T", value)
	}
	return nil
}

// jsonList returns the parameter of Dialect.List.
func jsonList(texts []string) string { return jsonOf(append([]string{}, texts...)) }

// jsonOf returns the parameter of Dialect.Records: records is a slice of structs.
func jsonOf(records any) string {
	list, err := json.Marshal(records)
	if err != nil {
		panic(err) // every text and number can be written
	}
	return string(list)
}

// orNull returns t, or NULL for the zero time.
func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// instant returns t as it comes back from a database.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
