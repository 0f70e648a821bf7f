// Package console uses the console in a browser as people do, and checks that its
// committed build is what its sources give.
package console
