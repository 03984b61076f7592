import type { ComponentChildren } from 'preact';
import { Term } from './help';

/** A titled part of a page. */
export function Panel(props: { title: string; help: string; wide?: boolean; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class={props.wide === true ? 'panel wide' : 'panel'} aria-label={props.title}>
      <header>
        <h2>
          <Term help={props.help}>{props.title}</Term>
        </h2>
        {props.aside}
      </header>
      {props.children}
    </section>
  );
}

export interface Fact {
  label: string;
  help: string;
  /** undefined: the server doesn't report it. */
  value: string | undefined;
}

/** Figures with their names; what is missing is said to be. */
export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <dl class="facts">
      {facts.map(({ label, help, value }) => (
        <div key={label}>
          <dt>
            <Term help={help}>{label}</Term>
          </dt>
          <dd class={value === undefined ? 'missing' : ''}>{value ?? 'not reported'}</dd>
        </div>
      ))}
    </dl>
  );
}

export const Empty = ({ children }: { children: ComponentChildren }) => <p class="empty">{children}</p>;
