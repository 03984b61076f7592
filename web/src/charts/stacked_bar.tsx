// Parts of a whole, side by side, with their names and shares.

import { Term } from '../ui/help';
import { percent } from '../ui/format';

export interface Part {
  name: string;
  help: string;
  color: number;
  value: number;
}

export function StackedBar({ label, parts, format }: { label: string; parts: Part[]; format: (value: number) => string }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return (
    <div class="stacked">
      <svg class="bar" width="100%" height="14" role="img" aria-label={`${label}: ${parts.map((p) => `${p.name} ${format(p.value)}`).join(', ')}`}>
        {parts.map((part, i) => {
          const before = parts.slice(0, i).reduce((sum, p) => sum + p.value, 0);
          return (
            total > 0 && (
              <rect key={part.name} class={`s${part.color}`} x={`${(before / total) * 100}%`} y="0" width={`${(part.value / total) * 100}%`} height="14" />
            )
          );
        })}
      </svg>
      <table class="parts">
        <tbody>
          {parts.map((part) => (
            <tr key={part.name}>
              <th scope="row">
                <span class={`swatch s${part.color}`} />
                <Term help={part.help}>{part.name}</Term>
              </th>
              <td>{format(part.value)}</td>
              <td class="share">{total > 0 ? percent(part.value / total) : ''}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
