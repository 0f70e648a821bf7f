// The pages, and where the rail shows them.

import type { Component } from 'svelte';
import Approvals from './Approvals.svelte';
import Audit from './Audit.svelte';
import Books from './Books.svelte';
import Coupons from './Coupons.svelte';
import DeadLetters from './DeadLetters.svelte';
import Instances from './Instances.svelte';
import Keys from './Keys.svelte';
import Missing from './Missing.svelte';
import Overview from './Overview.svelte';
import People from './People.svelte';
import Person from './Person.svelte';
import Promotion from './Promotion.svelte';
import PromotionNew from './PromotionNew.svelte';
import Promotions from './Promotions.svelte';
import Settings from './Settings.svelte';
import Template from './Template.svelte';
import TemplateNew from './TemplateNew.svelte';
import Unknown from './Unknown.svelte';
import Webhook from './Webhook.svelte';
import Webhooks from './Webhooks.svelte';

export interface PageInfo {
  title: string;
  rail: string; // the path of its entry in the rail
  role?: 'operator' | 'admin'; // who may see it; absent: everybody
  /** gets the parts of the address, if it declares them */
  component: Component<any>;
}

export const rail: { path: string; title: string; icon: string; role?: 'operator' | 'admin' }[] = [
  { path: '/overview', title: 'Overview', icon: 'overview' },
  { path: '/promotions', title: 'Promotions', icon: 'promotions' },
  { path: '/coupons', title: 'Coupons', icon: 'coupons' },
  { path: '/approvals', title: 'Approvals', icon: 'check' },
  { path: '/unknown', title: 'Unknown', icon: 'question' },
  { path: '/people', title: 'People', icon: 'people' },
  { path: '/dead-letters', title: 'Dead letters', icon: 'letters' },
  { path: '/webhooks', title: 'Webhooks', icon: 'webhooks' },
  { path: '/instances', title: 'Instances', icon: 'instances' },
  { path: '/reconciliation', title: 'Reconciliation', icon: 'books' },
  { path: '/keys', title: 'API keys', icon: 'keys', role: 'admin' },
  { path: '/audit', title: 'Audit', icon: 'audit' },
  { path: '/settings', title: 'Settings', icon: 'settings', role: 'admin' },
];

const flat: Record<string, Component<any>> = {
  overview: Overview, approvals: Approvals, unknown: Unknown, webhooks: Webhooks, promotions: Promotions, coupons: Coupons, people: People, 'dead-letters': DeadLetters, instances: Instances,
  reconciliation: Books, keys: Keys, audit: Audit, settings: Settings,
};

/** pageOf finds the page of an address. */
export function pageOf(parts: string[]): PageInfo {
  const [first = 'overview', second] = parts;
  const entry = rail.find((r) => r.path === '/' + first);
  const component = flat[first];
  if (!entry || !component) return { title: 'Not found', rail: '', component: Missing };
  if (!second) return { title: entry.title, rail: entry.path, role: entry.role, component };
  if (first === 'promotions' && second === 'new') return { title: 'Create a promotion', rail: entry.path, role: 'operator', component: PromotionNew };
  if (first === 'promotions') return { title: `Promotion ${second}`, rail: entry.path, component: Promotion };
  if (first === 'coupons') return second === 'new' ? { title: 'Create a template', rail: entry.path, role: 'operator', component: TemplateNew } : { title: `Template ${second}`, rail: entry.path, component: Template };
  if (first === 'webhooks') return { title: 'Webhook receiver', rail: entry.path, component: Webhook };
  if (first === 'people') return { title: second, rail: entry.path, component: Person };
  return { title: 'Not found', rail: '', component: Missing };
}
