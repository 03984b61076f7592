import type { Model } from '../api/server';
import { Term } from '../ui/help';
import { whole } from '../ui/format';
import { useStore } from '../ui/store';
import { changeSettings, kEfforts, settings, type Settings } from './settings';

interface NumberField {
  name: 'temperature' | 'topP' | 'maxTokens' | 'seed';
  label: string;
  help: string;
  min: number;
  max?: number;
  step: number | 'any';
}

const kNumbers: NumberField[] = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 'any', help: '0 always takes the likeliest token. While the model thinks, the server samples its own way unless it was started with --honour-sampling-in-thinking.' },
  { name: 'topP', label: 'Top p', min: 0, max: 1, step: 'any', help: 'Only the likeliest tokens, up to this probability together, are drawn from.' },
  { name: 'maxTokens', label: 'Max tokens', min: 1, step: 1, help: 'The longest answer, thinking included.' },
  { name: 'seed', label: 'Seed', min: 0, step: 1, help: 'The same seed, messages and settings give the same answer.' },
];

const kEffortNames: Record<string, string> = { '': 'server’s default', off: 'no thinking' };

export function SettingsForm({ models }: { models: Model[] }) {
  const s = useStore(settings);
  const change = (name: keyof Settings) => (event: { currentTarget: { value: string } }): void => changeSettings({ [name]: event.currentTarget.value });
  const chosen = models.find((m) => m.id === s.model) ?? models[0];
  return (
    <form class="settings" aria-label="Settings of the chat" onSubmit={(e) => e.preventDefault()}>
      <label for="set-model">Model</label>
      <select id="set-model" value={chosen?.id ?? ''} onChange={change('model')}>
        {models.map((m) => (
          <option key={m.id} value={m.id}>
            {m.id}
          </option>
        ))}
      </select>
      {chosen?.max_model_len !== undefined && <p class="hint">context of {whole(chosen.max_model_len)} tokens</p>}
      <label for="set-system">System prompt</label>
      <textarea id="set-system" rows={4} value={s.system} onInput={change('system')} />
      <label for="set-effort">Reasoning effort</label>
      <select id="set-effort" value={s.effort} onChange={change('effort')}>
        {kEfforts.map((effort) => (
          <option key={effort} value={effort}>
            {kEffortNames[effort] ?? effort}
          </option>
        ))}
      </select>
      <div class="numbers">
        {kNumbers.map((field) => (
          <div key={field.name}>
            <span class="row">
              <label for={`set-${field.name}`}>{field.label}</label>
              <Term help={field.help}>?<span class="unseen">About {field.label}</span></Term>
            </span>
            <input id={`set-${field.name}`} type="number" inputMode="decimal" min={field.min} max={field.max} step={field.step} placeholder="default" value={s[field.name]} onInput={change(field.name)} />
          </div>
        ))}
      </div>
      <label for="set-tools">Tools</label>
      <textarea id="set-tools" class="code" rows={4} spellcheck={false} placeholder='[{"type": "function", "function": {…}}]' value={s.tools} onInput={change('tools')} />
      <p class="hint">A JSON list of functions. You give their results by hand.</p>
    </form>
  );
}
